//! The label of a µGraph's kernel.

use orch_mugraph::lower::Request;

/// Grid and loop range of a µGraph's kernel, which the search chose, in the form of [`orch_template::Design::schedule`].
pub fn mugraph_schedule(request: &Request<'_>) -> String {
    let block = request.block().map(|block| {
        let grid: Vec<String> = block.grid.iter().map(usize::to_string).collect();
        format!(" grid={} loop={}", grid.join("x"), block.loop_range)
    });
    format!("µGraph{}", block.unwrap_or_default())
}
