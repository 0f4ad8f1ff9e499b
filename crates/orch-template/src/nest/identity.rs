//! Identity elements of reductions.

use orch_compute::expr::Const;
use orch_ir::{DType, ReduceOp};

/// The identity element of a reduction: combining it with any value gives that value. An arg-reduction has that of its
/// maximum or minimum.
pub(crate) fn identity(op: ReduceOp, dtype: DType) -> Const {
    let extreme = |highest: bool| {
        if dtype.is_float() {
            return Const::float(dtype, if highest { f64::INFINITY } else { f64::NEG_INFINITY });
        }
        let (low, high) = orch_compute::expr::fold::int_range(dtype);
        Const::int(dtype, if highest { high } else { low })
    };
    match op {
        ReduceOp::Sum => Const { dtype, bits: 0 },
        ReduceOp::Prod if dtype.is_float() => Const::float(dtype, 1.0),
        ReduceOp::Prod => Const::int(dtype, 1),
        ReduceOp::Max | ReduceOp::ArgMax { .. } => extreme(false),
        ReduceOp::Min | ReduceOp::ArgMin { .. } => extreme(true),
    }
}
