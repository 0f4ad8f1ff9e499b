//! Pools against their definition.

mod common;

use common::{assert_close, f32s, numbers, operator};
use proptest::prelude::*;

/// A 1-d pool by its definition: for each window the positions in the operand, and how many it counts.
#[derive(Clone, Debug)]
struct Pool {
    extent: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: (usize, usize),
    ceil: bool,
    count_padding: bool,
}

impl Pool {
    fn windows(&self) -> Vec<(Vec<usize>, usize)> {
        let reach = (self.kernel - 1) * self.dilation + 1;
        let padded = self.pads.0 + self.extent + self.pads.1;
        let mut windows = Vec::new();
        let mut begin = 0;
        while begin + reach <= padded
            || (self.ceil && begin + reach < padded + self.stride && begin < self.pads.0 + self.extent)
        {
            let taps: Vec<usize> = (0..self.kernel).map(|tap| begin + tap * self.dilation).collect();
            let inside: Vec<usize> = (taps.iter())
                .filter_map(|&at| at.checked_sub(self.pads.0).filter(|&at| at < self.extent))
                .collect();
            let counted = if self.count_padding {
                taps.iter().filter(|&&at| at < padded).count()
            } else {
                inside.len()
            };
            windows.push((inside, counted));
            begin += self.stride;
        }
        windows
    }

    fn operator(&self, op_type: &str) -> common::Operator {
        operator(op_type)
            .opset(22)
            .ints("kernel_shape", &[self.kernel as i64])
            .ints("strides", &[self.stride as i64])
            .ints("dilations", &[self.dilation as i64])
            .ints("pads", &[self.pads.0 as i64, self.pads.1 as i64])
            .int("ceil_mode", i64::from(self.ceil))
    }
}

fn pools() -> impl Strategy<Value = Pool> {
    (1usize..9, 1usize..4, 1usize..4, 1usize..3, any::<(bool, bool)>())
        .prop_flat_map(|(extent, kernel, stride, dilation, flags)| {
            (Just((extent, kernel, stride, dilation, flags)), 0..kernel, 0..kernel)
        })
        .prop_map(|((extent, kernel, stride, dilation, (ceil, count_padding)), low, high)| Pool {
            extent,
            kernel,
            stride,
            dilation,
            pads: (low, high),
            ceil,
            count_padding,
        })
        .prop_filter("the window fits, and holds an element", |pool| {
            let reach = (pool.kernel - 1) * pool.dilation + 1;
            reach <= pool.extent + pool.pads.0 + pool.pads.1
                && pool.windows().iter().all(|(inside, _)| !inside.is_empty())
        })
}

proptest! {
    #[test]
    fn average_pool_is_its_definition(pool in pools()) {
        let x = numbers(&[1, 2, pool.extent]);
        let values = x.to_f64();
        let want: Vec<f64> = values
            .chunks(pool.extent)
            .flat_map(|plane| {
                pool.windows().into_iter().map(|(inside, counted)| {
                    inside.iter().map(|&at| plane[at]).sum::<f64>() / counted as f64
                })
            })
            .collect();
        let operator = pool.operator("AveragePool").int("count_include_pad", i64::from(pool.count_padding));
        assert_close(&operator.input(x).values(), &want);
    }

    #[test]
    fn max_pool_is_its_definition(pool in pools()) {
        let x = numbers(&[1, 2, pool.extent]);
        let values = x.to_f64();
        let mut want = (Vec::new(), Vec::new());
        for plane in 0..2 {
            for (inside, _) in pool.windows() {
                let of = |at: usize| values[plane * pool.extent + at];
                let best = inside.iter().copied().reduce(|best, at| if of(at) > of(best) { at } else { best });
                let best = best.expect("the filter asks for an element");
                want.0.push(of(best));
                want.1.push((plane * pool.extent + best) as f64);
            }
        }
        let results = pool.operator("MaxPool").outputs(2).input(x).run();
        prop_assert_eq!(results[0].to_f64(), want.0);
        prop_assert_eq!(results[1].to_f64(), want.1);
    }
}

#[test]
fn max_pool_counts_columns_first_on_request() {
    let pool = |storage_order| {
        let pool = operator("MaxPool").ints("kernel_shape", &[2, 2]).ints("strides", &[2, 2]).outputs(2);
        let x = f32s(&[1, 2, 2, 4], &[0., 0., 0., 0., 0., 9., 0., 9., 9., 0., 0., 0., 0., 0., 9., 0.]);
        pool.int("storage_order", storage_order).input(x).run()[1].to_f64()
    };
    assert_eq!(pool(0), [5.0, 7.0, 8.0, 14.0]);
    assert_eq!(pool(1), [3.0, 7.0, 8.0, 13.0]);
}

#[test]
fn an_average_in_f16_is_summed_in_f32() {
    let values = vec![60_000.0; 4];
    let x = orch_ir::Tensor::from_f64(orch_ir::DType::F16, [1, 1, 4], &values);
    assert_close(&operator("GlobalAveragePool").input(x.clone()).values(), &[60_000.0]);
    assert_close(&operator("AveragePool").ints("kernel_shape", &[4]).input(x).values(), &[60_000.0]);
}
