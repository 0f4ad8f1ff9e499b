//! The source tree as data, for the tests of this crate: they check what no compiler checks. Who may depend on whom, that modules do
//! not depend on each other in circles, that one name means one thing, and that words of the field are used.
//!
//! Nothing else depends on this crate.

pub mod modules;
pub mod sources;
