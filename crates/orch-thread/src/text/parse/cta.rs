//! Reads the statements of a CTA.

use crate::cta::{CtaStmt, Location, MmaType, RedOp};
use crate::text::parse::{Parsed, Parser};
use orch_compute::expr::ExprId;

impl Parser {
    /// An mbarrier and its phase.
    fn mbarrier_and_phase(&mut self) -> Parsed<(ExprId, ExprId)> {
        let mbarrier = self.expr()?;
        self.lexer.expect(",")?;
        Ok((mbarrier, self.expr()?))
    }

    /// What follows the word of a statement of a CTA.
    pub(crate) fn cta_stmt(&mut self, word: &str) -> Parsed<CtaStmt> {
        Ok(match word {
            "barrier" => CtaStmt::Barrier,
            "warp_barrier" => CtaStmt::WarpBarrier,
            "cluster_barrier" => CtaStmt::ClusterBarrier,
            "cluster_arrive" => CtaStmt::ClusterArrive,
            "cluster_wait" => CtaStmt::ClusterWait,
            "reuse_shared" => CtaStmt::ReuseShared,
            "launch_dependents" => CtaStmt::LaunchDependents,
            "grid_dependency_wait" => CtaStmt::GridDependencyWait,
            "wgmma_wait" => CtaStmt::WgmmaWait,
            "cp_async_commit" => CtaStmt::CpAsyncCommit,
            "cp_async_wait" => CtaStmt::CpAsyncWait(self.lexer.count()?),
            "compute_first" => CtaStmt::ComputeFirst(self.expr()?),
            "grid_barrier" => CtaStmt::GridBarrier { arrived: self.location()? },
            "shuffle" => {
                let (var, value) = self.binding()?;
                self.lexer.expect(",")?;
                CtaStmt::Shuffle { var, value, with: self.lexer.count()? }
            }
            "exceeds" => {
                let var = self.declaration()?;
                self.lexer.expect("=")?;
                let accs = self.location()?;
                self.lexer.expect(",")?;
                let count = self.lexer.count()?;
                self.lexer.expect(",")?;
                CtaStmt::Exceeds { var, accs, count, limits: self.location()? }
            }
            "load_dsmem" => {
                let var = self.declaration()?;
                self.lexer.expect("=")?;
                let from = self.location()?;
                self.lexer.expect(",")?;
                CtaStmt::LoadDsmem { var, from, rank: self.expr()? }
            }
            "load_relaxed" => {
                let var = self.declaration()?;
                self.lexer.expect("=")?;
                CtaStmt::LoadRelaxed { var, from: self.location()? }
            }
            "store_dsmem" => {
                let to = self.location()?;
                self.lexer.expect(",")?;
                let rank = self.expr()?;
                self.lexer.expect("=")?;
                CtaStmt::StoreDsmem { to, rank, value: self.expr()? }
            }
            "red" => {
                let name = self.lexer.word()?;
                let Some(op) = RedOp::ALL.into_iter().find(|op| op.name() == name) else {
                    return self.lexer.error("add, min or max is expected");
                };
                let to = self.location()?;
                self.lexer.expect(",")?;
                let (value, mut mask) = (self.expr()?, None);
                if self.lexer.accept(",") {
                    self.lexer.expect("if")?;
                    mask = Some(self.expr()?);
                }
                CtaStmt::Red { op, to, value, mask }
            }
            "cp_async" => {
                let (to, from) = self.locations()?;
                self.lexer.expect(",")?;
                let elems = self.lexer.count()?;
                let (mut real, mut mask) = (None, None);
                if self.lexer.accept("real") {
                    real = Some(self.expr()?);
                }
                if self.lexer.accept(",") {
                    self.lexer.expect("if")?;
                    mask = Some(self.expr()?);
                }
                CtaStmt::CpAsync { to, from, elems, real, mask }
            }
            "tma_load" => {
                let to = self.location()?;
                self.lexer.expect(",")?;
                let map = self.tensor_map()?;
                self.lexer.expect("[")?;
                let mut at = vec![self.expr()?];
                while self.lexer.accept(",") {
                    at.push(self.expr()?);
                }
                self.lexer.expect("]")?;
                self.lexer.expect(",")?;
                CtaStmt::TmaLoad { to, map, at, mbarrier: self.expr()? }
            }
            "mbarrier_wait_full" => {
                let (mbarrier, phase) = self.mbarrier_and_phase()?;
                CtaStmt::MbarrierWaitFull { mbarrier, phase }
            }
            "mbarrier_arrive_empty" => {
                let (mbarrier, phase) = self.mbarrier_and_phase()?;
                CtaStmt::MbarrierArriveEmpty { mbarrier, phase }
            }
            "mbarrier_wait_empty" => {
                let (mbarrier, phase) = self.mbarrier_and_phase()?;
                CtaStmt::MbarrierWaitEmpty { mbarrier, phase }
            }
            "ldmatrix" => {
                let (to, from) = self.locations()?;
                self.lexer.expect(",")?;
                let matrices = self.lexer.count()?;
                CtaStmt::Ldmatrix { to, from, matrices, transposed: self.transposed()? }
            }
            _ => {
                let name = self.lexer.word()?;
                let types = [MmaType::F16, MmaType::Bf16, MmaType::Tf32];
                let Some(ty) = types.into_iter().find(|ty| ty.name() == name) else {
                    return self.error(format!("there is no {word} of {name}"));
                };
                self.lexer.expect(",")?;
                let acc = self.location()?;
                self.lexer.expect(",")?;
                let (a, b) = self.locations()?;
                if word == "mma" {
                    return Ok(CtaStmt::Mma { ty, acc, a, b });
                }
                self.lexer.expect(",")?;
                let n = self.lexer.count()?;
                self.lexer.expect(",")?;
                let k = self.lexer.count()?;
                let mut qualifiers = [("transposed_a", false), ("transposed_b", false), ("async", false)];
                while self.lexer.accept(",") {
                    let word = self.lexer.word()?;
                    match qualifiers.iter_mut().find(|(name, is_there)| *name == word && !is_there) {
                        Some((_, is_there)) => *is_there = true,
                        None => {
                            let expected = "transposed_a, transposed_b or async is expected";
                            return self.error(format!("{expected}, not {word}"));
                        }
                    }
                }
                let [(_, a_transposed), (_, b_transposed), (_, is_async)] = qualifiers;
                CtaStmt::Wgmma { ty, acc, a, b, n, k, a_transposed, b_transposed, is_async }
            }
        })
    }

    /// `, transposed`, or nothing.
    fn transposed(&mut self) -> Parsed<bool> {
        let is_there = self.lexer.accept(",");
        if is_there {
            self.lexer.expect("transposed")?;
        }
        Ok(is_there)
    }

    /// `buffer[offset]`.
    fn location(&mut self) -> Parsed<Location> {
        let buffer = self.buffer()?;
        self.lexer.expect("[")?;
        let offset = self.expr()?;
        self.lexer.expect("]")?;
        Ok(Location { buffer, offset })
    }

    fn locations(&mut self) -> Parsed<(Location, Location)> {
        let first = self.location()?;
        self.lexer.expect(",")?;
        Ok((first, self.location()?))
    }
}
