//! The primitive graphs that Korch's evaluation reports counts for, rebuilt from the structure of the models, with
//! shapes and the synthetic cost model of the comparison runs.
//!
//! One file per model. `net` is the builder: it names tensors, keeps their shapes and counts the arithmetic.

#![allow(dead_code, reason = "each test and example uses a part")]

pub mod candy;
pub mod cost;
pub mod net;
pub mod segformer;
pub mod yolov4;
pub mod yolox;
