//! Stage "choose": the binary linear program over candidate kernels (Korch, ASPLOS'24, section 5).

use super::candidates::CandidateColumn;
use super::units::Units;
use crate::Error;
use orch_plan::blp::{self, Choice, ChooseOptions, Problem, Status};

/// The cheapest set of columns that produces all outputs of the graph, with these costs of the columns.
///
/// # Errors
/// If the solver fails, or no set produces all outputs: a bug, because every unit is a candidate by itself.
pub fn choose(units: &Units, columns: &[CandidateColumn], costs_us: &[f64]) -> Result<Choice, Error> {
    let columns = (columns.iter().zip(costs_us))
        .map(|(column, &cost_us)| blp::Column::of_candidate(&column.candidate, cost_us));
    let problem = Problem { columns: columns.collect(), ..Problem::of_graph(&units.dag) };
    let choice = blp::choose(&problem, &ChooseOptions::default(), &orch_plan::solver::MicroLp)
        .map_err(Error::internal)?;
    if choice.status == Status::Infeasible {
        return Err(Error::Internal("no kernels produce some output of the model".to_owned()));
    }
    Ok(choice)
}
