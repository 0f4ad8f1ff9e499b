//! Statements of teams.

use super::expression::Value;
use super::function::Emitter;
use super::types::CppType;
use orch_tile::{Product, Spot, TeamStmt};

impl Emitter<'_> {
    pub(super) fn team_stmt(&mut self, stmt: &TeamStmt) {
        match stmt {
            TeamStmt::Barrier | TeamStmt::Recycle => self.line("__syncthreads();"),
            TeamStmt::ClusterBarrier => self.line("o_cluster_barrier();"),
            TeamStmt::Commit => self.line("o_commit();"),
            TeamStmt::Wait(groups) => self.line(&format!("o_wait<{groups}>();")),
            TeamStmt::Shuffle { var, value, with } => {
                let value = self.eval(*value);
                let text = format!("o_shuffle({}, {with})", value.text);
                self.declare("const ", *var, Value { text, ty: value.ty });
            }
            TeamStmt::Peer { var, rank, from } => {
                let ty = self.program.var_type(*var);
                let rank = self.eval(*rank).text;
                let width = self.aligned(from.offset, ty.lanes, ty.dtype);
                let place = self.place(from);
                let read = format!("o_peer<{}, {width}>({place}, {rank})", ty.lanes);
                let text = if ty.lanes == 1 { format!("{read}.v[0]") } else { read };
                self.declare("const ", *var, Value { text, ty: CppType::of(ty.dtype, ty.lanes) });
            }
            TeamStmt::Copy { to, from, elems, mask } => {
                let bytes = elems * self.program.buffer(to.buffer).dtype.size_bytes();
                let mask = mask.map_or("true".to_owned(), |mask| self.eval(mask).text);
                let (to, from) = (self.place(to), self.place(from));
                self.line(&format!("o_copy<{bytes}>({to}, {from}, {mask});"));
            }
            TeamStmt::LoadMatrix { to, from, matrices, transposed } => {
                let (to, from) = (self.pair(to), self.place(from));
                self.line(&format!("o_load_matrix<{matrices}, {transposed}>({to}, {from});"));
            }
            TeamStmt::Multiply { product, sum, a, b } => {
                let sum = self.place(sum);
                let (a, b) = match product {
                    Product::Tf32 => (self.place(a), self.place(b)),
                    Product::F16 | Product::Bf16 => (self.pair(a), self.pair(b)),
                };
                self.line(&format!("o_multiply_{}({sum}, {a}, {b});", product.name()));
            }
        }
    }

    /// A pointer to an element.
    fn place(&mut self, spot: &Spot) -> String {
        let offset = self.eval(spot.offset).text;
        format!("{} + {offset}", self.buffers[spot.buffer.index()])
    }

    /// A pointer to a pair of elements of a fragment.
    fn pair(&mut self, spot: &Spot) -> String {
        let offset = self.eval(spot.offset).text;
        format!("{} + ({offset}) / 2", self.buffers[spot.buffer.index()])
    }
}
