//! The search finds what it should.
mod common;
use common::program;
use orch_mugraph::print;
use orch_mugraph::search::{SearchOptions, search};

#[test]
fn tmp() {
    for name in std::env::var("NAMES").unwrap().split(',') {
        let p = program(name);
        let t = std::time::Instant::now();
        let (found, report) = search(&p, &SearchOptions { threads: 2, ..SearchOptions::default() }).unwrap();
        println!("{name}: {:?} {report:?}", t.elapsed());
        for f in found.iter().take(1) {
            println!("{:.2} us\n{}", f.cost_us, print(&f.graph));
        }
    }
}
