//! wgmma in the interpreter: what it accumulates, and what must not be touched while it is in flight.

use crate::cta::{CtaStmt, Location, MmaType, SWIZZLE_ALIGNMENT, WARP, WARP_GROUP, swizzled};
use crate::interp::cluster::Cluster;
use crate::interp::fragment::{GROUP, factor, first_place};
use crate::interp::in_flight::WgmmaInFlight;
use crate::interp::{ExecError, ThreadInterpreter};
use crate::program::Scope;
use orch_compute::expr::scalar::{self, Number};
use orch_ir::DType;

impl ThreadInterpreter<'_> {
    /// Adds a product of tiles by a warp group.
    pub(crate) fn wgmma(
        &mut self,
        cluster: &mut Cluster,
        group: &[usize],
        stmt: &CtaStmt,
    ) -> Result<(), ExecError> {
        let CtaStmt::Wgmma { ty: product, acc: sum, a, b, n: columns, k: terms, transposed, is_async } =
            *stmt
        else {
            return Ok(());
        };
        let rows = 16 * WARP_GROUP;
        let a_tile = match self.program.buffer(a.buffer).scope {
            Scope::Scratch => self.first_factor(cluster, group, (product, a), terms)?,
            _ => self.swizzled_tile(cluster, group, (product, a), [rows, terms])?,
        };
        let lines = if transposed { [terms, columns] } else { [columns, terms] };
        let b_tile = self.swizzled_tile(cluster, group, (product, b), lines)?;
        for (thread, &place) in group.iter().enumerate() {
            let (warp, lane) = (thread / WARP, thread % WARP);
            let (g, c) = (lane / 4, lane % 4);
            self.at(cluster, place, |machine| {
                let first = machine.eval_index(sum.offset)?;
                for at in 0..columns / 2 {
                    let row = 16 * warp + g + 8 * (at / 2 % 2);
                    let column = 8 * (at / 4) + 2 * c + at % 2;
                    let start = machine.memory.load(sum.buffer, first + at as i64)?;
                    let total = (0..terms).try_fold(start, |total, k| {
                        let b = if transposed { b_tile[k][column] } else { b_tile[column][k] };
                        scalar::fma(DType::F32, a_tile[row][k], b, total)
                    });
                    let total = total.ok_or_else(|| ExecError::Undefined { node: "a product".to_owned() })?;
                    machine.memory.store(sum.buffer, first + at as i64, total)?;
                    machine.memory.set_known(sum.buffer, first + at as i64, !is_async)?;
                }
                Ok(())
            })?;
        }
        if is_async {
            let first = self.common(cluster, group, sum.offset)?;
            let mut reads = Vec::new();
            for (location, elems) in [(a, rows * terms), (b, columns * terms)] {
                if self.program.buffer(location.buffer).scope.is_shared() {
                    let start = self.common(cluster, group, location.offset)?;
                    reads.push((location.buffer, start..start + elems as i64));
                }
            }
            let held = match self.program.buffer(a.buffer).scope {
                Scope::Scratch => Some((a, self.fragment(cluster, group, a, terms / 2)?)),
                _ => None,
            };
            let sums = (sum.buffer, first, columns / 2);
            cluster.products[group[0] / GROUP] = Some(WgmmaInFlight { sums, reads, held });
        }
        Ok(())
    }

    /// Ends the product that is in flight in a warp group.
    pub(crate) fn wgmma_wait(&mut self, cluster: &mut Cluster, group: &[usize]) -> Result<(), ExecError> {
        let number = group[0] / GROUP;
        let Some(WgmmaInFlight { sums: (buffer, first, count), held, .. }) = cluster.products[number].take()
        else {
            return Ok(());
        };
        if let Some((location, values)) = held {
            let now = self.fragment(cluster, group, location, values[0].len())?;
            let is_nan = |number: &Number| matches!(number, Number::Float(value) if value.is_nan());
            let differs = |(a, b): (&Number, &Number)| a != b && !(is_nan(a) && is_nan(b));
            if values.iter().flatten().zip(now.iter().flatten()).any(differs) {
                return Err(ExecError::divergence(
                    "an operand is overwritten while its product is in flight",
                ));
            }
        }
        for &place in group {
            self.at(cluster, place, |machine| {
                (first..first + count as i64).try_for_each(|at| machine.memory.set_known(buffer, at, true))
            })?;
        }
        Ok(())
    }

    /// Products that are in flight go on reading after a barrier.
    pub(crate) fn read_on(&mut self, cluster: &mut Cluster) -> Result<(), ExecError> {
        for number in 0..cluster.products.len() {
            let Some(running) = cluster.products[number].clone() else { continue };
            // Two threads, so that whoever writes there, another one reads.
            for place in [0, 1].map(|at| number * GROUP + at) {
                self.at(cluster, place, |machine| {
                    let mut reads = running
                        .reads
                        .iter()
                        .flat_map(|(buffer, range)| range.clone().map(move |at| (*buffer, at)));
                    reads.try_for_each(|(buffer, at)| machine.memory.load_factor(buffer, at).map(|_| ()))
                })?;
            }
        }
        Ok(())
    }

    /// A tile in shared memory, line by line.
    fn swizzled_tile(
        &mut self,
        cluster: &mut Cluster,
        group: &[usize],
        (product, location): (MmaType, Location),
        [lines, elems]: [usize; 2],
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        let start = self.common(cluster, group, location.offset)?;
        if start % SWIZZLE_ALIGNMENT as i64 != 0 {
            return Err(ExecError::divergence("a tile does not start at a multiple of 1024 bytes"));
        }
        self.at(cluster, group[0], |machine| {
            let mut element = |line, at| {
                let place = start + swizzled(lines, line, at) as i64;
                machine.memory.load_factor(location.buffer, place).map(|value| factor(product, value))
            };
            (0..lines).map(|line| (0..elems).map(|at| element(line, at)).collect()).collect()
        })
    }

    /// The rows of a warp group's first factor in fragments.
    fn first_factor(
        &mut self,
        cluster: &mut Cluster,
        group: &[usize],
        (product, location): (MmaType, Location),
        terms: usize,
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        let mut rows = vec![vec![Number::Float(0.0); terms]; 16 * WARP_GROUP];
        let held = self.fragment(cluster, group, location, terms / 2)?;
        for (thread, elems) in held.into_iter().enumerate() {
            let (warp, lane) = (thread / WARP, thread % WARP);
            for (at, value) in elems.into_iter().enumerate() {
                let [row, term] = first_place(product, lane, at % 8);
                rows[16 * warp + row][16 * (at / 8) + term] = factor(product, value);
            }
        }
        Ok(rows)
    }
}
