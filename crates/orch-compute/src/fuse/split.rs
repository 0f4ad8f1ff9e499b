//! Which dimensions are several axes: found when index arithmetic divides by a factor of an axis.

use super::axes::Splits;
use super::builder::Builder;
use crate::expr::{Expr, ExprId, VarId};
use std::collections::BTreeSet;

/// A factor worth splitting off even if only the quotient or only the remainder is used: a vector fits inside.
const MIN_LONE_FACTOR: i64 = 16;

impl Builder<'_> {
    /// The splits to build with next: those of this build if nothing more is to be gained.
    pub fn wanted_splits(&self) -> Splits {
        self.wanted.clone()
    }

    /// Asks for the splits that make these indices plain.
    pub fn want_plain(&mut self, indices: &[ExprId]) {
        let factors = self.axis_factors(indices);
        for &(var, factor, _) in &factors {
            self.want(var, factor);
        }
    }

    /// Asks for splits after which reads and stores are affine, where that pays.
    pub fn want_affine_reads(&mut self) {
        let indices = self.access_indices();
        let factors = self.axis_factors(&indices);
        for &(var, factor, is_quotient) in &factors {
            if factor >= MIN_LONE_FACTOR || factors.contains(&(var, factor, !is_quotient)) {
                self.want(var, factor);
            }
        }
    }

    /// All `axis / k` (true) and `axis % k` (false) where `k` divides the axis, smallest factors first.
    fn axis_factors(&self, roots: &[ExprId]) -> BTreeSet<(VarId, i64, bool)> {
        let mut found = BTreeSet::new();
        for id in self.exprs.reachable(roots) {
            let (dividend, divisor, is_quotient) = match self.exprs.get(id) {
                Expr::FloorDiv(a, b) => (*a, *b, true),
                Expr::FloorRem(a, b) => (*a, *b, false),
                _ => continue,
            };
            if let (Expr::Var(var), Some(factor)) = (self.exprs.get(dividend), self.exprs.as_int(divisor)) {
                let extent = self.axis(*var).map_or(0, |axis| axis.extent as i64);
                if factor > 1 && factor < extent && extent % factor == 0 {
                    found.insert((*var, factor, is_quotient));
                }
            }
        }
        found
    }

    /// Splits an axis in the next build. A dimension is split once per build, since that moves its later parts.
    fn want(&mut self, var: VarId, factor: i64) {
        let Some(axis) = self.axes.iter().find(|axis| axis.var == var) else { return };
        for &(key, position) in &axis.owners {
            if self.wanted.parts.get(&key) == self.splits.parts.get(&key) {
                self.wanted.split(key, position, axis.extent, factor as usize);
            }
        }
    }
}
