//! Statements of teams.

use super::expression::Value;
use super::function::Emitter;
use super::types::CppType;
use orch_tile::{Product, Spot, TeamStmt};

impl Emitter<'_> {
    pub(super) fn team_stmt(&mut self, stmt: &TeamStmt) {
        match stmt {
            TeamStmt::Barrier | TeamStmt::Recycle => {
                if self.multiplies_tiles {
                    self.line("o_publish();");
                }
                self.line("__syncthreads();");
            }
            TeamStmt::Release if self.is_launched_early => self.line("o_release();"),
            TeamStmt::Release => {}
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
            TeamStmt::MultiplyTiles { product, sum, a, b, columns } => {
                let (sum, a, b) = (self.place(sum), self.place(a), self.place(b));
                self.line(&format!("o_multiply_tiles_{}_{columns}({sum}, {a}, {b});", product.name()));
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

/// The function that multiplies tiles of this many columns: PTX's `wgmma` has its registers in its text.
pub fn multiply_tiles(product: Product, columns: usize) -> String {
    let name = product.name();
    let sums = columns / 2;
    let list = |from: usize, count: usize| -> String {
        (from..from + count).map(|at| format!("%{at}")).collect::<Vec<_>>().join(", ")
    };
    let operands: Vec<String> = (0..sums).map(|at| format!("\"+f\"(c[{at}])")).collect();
    let mut text = format!(
        "ORC void o_multiply_tiles_{name}_{columns}(float *c, const void *a, const void *b) {{\n    \
         const unsigned long long at = o_tile(a), bt = o_tile(b);\n    \
         asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
    );
    // 16 terms of a line are 32 bytes.
    for step in 0..4 {
        text += &format!(
            "    asm volatile(\"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{name}.{name} {{{}}}, %{sums}, %{}, 1, 1, 1, 0, 0;\" \
             : {} : \"l\"(at + {offset}), \"l\"(bt + {offset}));\n",
            list(0, sums),
            sums + 1,
            operands.join(", "),
            offset = 2 * step,
        );
    }
    text += "    asm volatile(\"wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n}\n";
    text
}
