//! `wgmma` in the interpreter: what it accumulates, and which operands must not be written while it is in flight.

use crate::cta::{CtaStmt, Location, MmaType, SWIZZLE_ALIGNMENT, WARP, WARP_GROUP_ROWS, swizzled};
use crate::interp::cluster::Cluster;
use crate::interp::fragment::{GROUP, a_element, operand};
use crate::interp::in_flight::WgmmaInFlight;
use crate::interp::{ExecError, ThreadInterpreter};
use crate::program::Scope;
use orch_compute::expr::scalar::{self, Number};
use orch_ir::DType;

impl ThreadInterpreter<'_> {
    /// Runs a `wgmma` of a warp group: `acc[64, n] += a[64, k] * b[k, n]`. `group` is the places of its threads.
    pub(crate) fn wgmma(
        &mut self,
        cluster: &mut Cluster,
        group: &[usize],
        stmt: &CtaStmt,
    ) -> Result<(), ExecError> {
        let CtaStmt::Wgmma { ty, acc, a, b, n, k: k_extent, a_transposed, b_transposed, is_async } = *stmt
        else {
            return Ok(());
        };
        let rows = WARP_GROUP_ROWS;
        let a_tile = match self.program.buffer(a.buffer).scope {
            Scope::Scratch => self.a_of_fragments(cluster, group, (ty, a), k_extent)?,
            _ => self.operand_tile(cluster, group, (ty, a), [rows, k_extent], a_transposed)?,
        };
        // a_tile: [row, k]; b_tile: [column, k]
        let b_tile = self.operand_tile(cluster, group, (ty, b), [n, k_extent], b_transposed)?;
        for (thread, &place) in group.iter().enumerate() {
            let (warp, lane) = (thread / WARP, thread % WARP);
            let (g, c) = (lane / 4, lane % 4);
            self.at(cluster, place, |interpreter| {
                let first = interpreter.eval_index(acc.offset)?;
                for at in 0..n / 2 {
                    let row = 16 * warp + g + 8 * (at / 2 % 2);
                    let column = 8 * (at / 4) + 2 * c + at % 2;
                    let start = interpreter.memory.load(acc.buffer, first + at as i64)?;
                    let total = (0..k_extent).try_fold(start, |total, k| {
                        scalar::fma(DType::F32, a_tile[row][k], b_tile[column][k], total)
                    });
                    let total = total.ok_or_else(|| ExecError::Undefined { node: "wgmma".to_owned() })?;
                    interpreter.memory.store(acc.buffer, first + at as i64, total)?;
                    interpreter.memory.set_defined(acc.buffer, first + at as i64, !is_async)?;
                }
                Ok(())
            })?;
        }
        if is_async {
            let first = self.common(cluster, group, acc.offset)?;
            let mut reads = Vec::new();
            for (location, elems) in [(a, rows * k_extent), (b, n * k_extent)] {
                if self.program.buffer(location.buffer).scope.is_shared() {
                    let start = self.common(cluster, group, location.offset)?;
                    reads.push((location.buffer, start..start + elems as i64));
                }
            }
            let a_registers = match self.program.buffer(a.buffer).scope {
                Scope::Scratch => Some((a, self.fragment(cluster, group, a, k_extent / 2)?)),
                _ => None,
            };
            let acc = (acc.buffer, first, n / 2);
            cluster.wgmmas[group[0] / GROUP] = Some(WgmmaInFlight { acc, reads, a_registers });
        }
        Ok(())
    }

    /// Waits for the `wgmma` in flight of a warp group, if there is one.
    pub(crate) fn wgmma_wait(&mut self, cluster: &mut Cluster, group: &[usize]) -> Result<(), ExecError> {
        let number = group[0] / GROUP;
        let Some(WgmmaInFlight { acc: (buffer, first, count), a_registers, .. }) =
            cluster.wgmmas[number].take()
        else {
            return Ok(());
        };
        if let Some((location, values)) = a_registers {
            let now = self.fragment(cluster, group, location, values[0].len())?;
            let is_nan = |number: &Number| matches!(number, Number::Float(value) if value.is_nan());
            let differs = |(a, b): (&Number, &Number)| a != b && !(is_nan(a) && is_nan(b));
            if values.iter().flatten().zip(now.iter().flatten()).any(differs) {
                return Err(ExecError::divergence("an operand is overwritten while its wgmma is in flight"));
            }
        }
        for &place in group {
            self.at(cluster, place, |interpreter| {
                (first..first + count as i64)
                    .try_for_each(|at| interpreter.memory.set_defined(buffer, at, true))
            })?;
        }
        Ok(())
    }

    /// Repeats the reads of each `wgmma` in flight, which goes on reading after a barrier.
    pub(crate) fn repeat_wgmma_reads(&mut self, cluster: &mut Cluster) -> Result<(), ExecError> {
        for number in 0..cluster.wgmmas.len() {
            let Some(wgmma) = cluster.wgmmas[number].clone() else { continue };
            // Two threads read, so that a write by any thread is a race with another one.
            for place in [0, 1].map(|at| number * GROUP + at) {
                self.at(cluster, place, |interpreter| {
                    let mut reads = wgmma
                        .reads
                        .iter()
                        .flat_map(|(buffer, range)| range.clone().map(move |at| (*buffer, at)));
                    reads.try_for_each(|(buffer, at)| interpreter.memory.load_operand(buffer, at).map(|_| ()))
                })?;
            }
        }
        Ok(())
    }

    /// `[row][k]`: an operand in shared memory, whose tile is `[k, row]` if it is transposed.
    fn operand_tile(
        &mut self,
        cluster: &mut Cluster,
        group: &[usize],
        operand: (MmaType, Location),
        [rows, k_extent]: [usize; 2],
        is_transposed: bool,
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        if !is_transposed {
            return self.swizzled_tile(cluster, group, operand, [rows, k_extent]);
        }
        let lines = self.swizzled_tile(cluster, group, operand, [k_extent, rows])?;
        Ok((0..rows).map(|row| lines.iter().map(|line| line[row]).collect()).collect())
    }

    /// `[row][at]`: a swizzled tile in shared memory.
    fn swizzled_tile(
        &mut self,
        cluster: &mut Cluster,
        group: &[usize],
        (ty, location): (MmaType, Location),
        [rows, elems]: [usize; 2],
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        let start = self.common(cluster, group, location.offset)?;
        if start % SWIZZLE_ALIGNMENT as i64 != 0 {
            return Err(ExecError::divergence("a tile does not start at a multiple of 1024 bytes"));
        }
        self.at(cluster, group[0], |interpreter| {
            let mut element = |row, at| {
                let place = start + swizzled(rows, row, at) as i64;
                interpreter.memory.load_operand(location.buffer, place).map(|value| operand(ty, value))
            };
            (0..rows).map(|row| (0..elems).map(|at| element(row, at)).collect()).collect()
        })
    }

    /// `[row][k]`: operand A of a warp group, from fragments.
    fn a_of_fragments(
        &mut self,
        cluster: &mut Cluster,
        group: &[usize],
        (ty, location): (MmaType, Location),
        k_extent: usize,
    ) -> Result<Vec<Vec<Number>>, ExecError> {
        let mut rows = vec![vec![Number::Float(0.0); k_extent]; WARP_GROUP_ROWS];
        let held = self.fragment(cluster, group, location, k_extent / 2)?;
        for (thread, elems) in held.into_iter().enumerate() {
            let (warp, lane) = (thread / WARP, thread % WARP);
            for (at, value) in elems.into_iter().enumerate() {
                let [row, k] = a_element(ty, lane, at % 8);
                rows[16 * warp + row][16 * (at / 8) + k] = operand(ty, value);
            }
        }
        Ok(rows)
    }
}
