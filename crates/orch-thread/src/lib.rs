//! Thread programs: what each worker of a kernel does, in explicit loops, buffers and vectors, on GPUs by the threads of a CTA.
//!
//! Statements ([`program`], [`cta`], [`tma`], [`amx`]); text form, parser, validator, interpreter and a generator of random
//! valid programs ([`text`], [`validate`], [`interp`], [`random`]); passes ([`passes`]); how evenly threads share work
//! items ([`shares`]); task mappings from workers to elements (Hidet, ASPLOS'23, section 5.1; [`mapping`]); targets as capability numbers ([`target`]).
//!
//! This crate writes no source text, reads no files and knows no device beyond the capability numbers it is given.

pub mod amx;
mod buffer;
pub mod count;
pub mod cta;
pub mod interp;
pub mod kernel;
mod known;
pub mod mapping;
mod operands;
pub mod passes;
pub mod program;
pub mod random;
pub mod shares;
mod swizzle;
pub mod target;
pub mod text;
pub mod tma;
pub mod validate;
pub mod vectorize;

pub use amx::{AmxShape, AmxStmt, TileId};
pub use cta::{Cta, CtaStmt, Location, MmaType};
pub use interp::{BufferData, ExecError, ExecOptions, Report, interpret};
pub use mapping::{Covering, LoweredMapping, TaskMapping, covering};
pub use operands::OperandPrecision;
pub use program::{Buffer, LoopKind, PREFETCH_PANELS, Scope, Stmt, ThreadProgram};
pub use target::{CpuTarget, CtaResources, GpuTarget};
pub use text::{ThreadTextError, parse_thread, print_thread};
pub use tma::{Mbarriers, TensorMap, TensorMapId};
pub use validate::validate_thread;
pub use vectorize::{LoadCounts, Vectorized, Vectorizer, Widening, vectorize};
