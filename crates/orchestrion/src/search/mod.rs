//! Search: proved µGraphs for regions of the graph.
//!
//! [`requests`] picks the programs that are worth a search, [`views`] finds their tensors in memory, [`finder`] searches one
//! program, and [`substitutes`] makes candidates of the results. [`whole`] makes one µGraph the plan of its program. [`cached`] checks what a plan from the cache has of them.

pub mod cached;
pub mod finder;
pub mod requests;
pub mod substitutes;
pub mod views;
pub mod whole;
