//! Prints the C of a kernel of a µGraph: `emit_cpu FILE KERNEL`, where the kernel is the number of the first tensor that it
//! defines. All tensors are f32 in row-major order. The last line says what the C function is passed.

use orch_ir::DType;
use orch_mugraph::lower::{Request, Stored, cpu};
use orch_mugraph::{TensorId, parse};
use orch_tile::target::X86_64_V4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(kernel)) = (args.next(), args.next()) else {
        return Err("usage: emit_cpu FILE KERNEL".into());
    };
    let graph = parse(&std::fs::read_to_string(file)?)?;
    let stored: Vec<Stored> =
        graph.shapes().iter().map(|shape| Stored::row_major(DType::F32, shape)).collect();
    let request =
        Request { graph: &graph, kernel: TensorId(kernel.parse()?), stored: &stored, name: "kernel" };
    let program = cpu::lower(&request, &X86_64_V4)?.program;
    println!("{}", orch_codegen::c::emit(&[&program], &X86_64_V4));
    let sizes: Vec<String> = (program.buffers.iter().filter(|buffer| buffer.scope.is_global()))
        .map(|buffer| format!("{} {}", buffer.name, buffer.elems))
        .collect();
    println!("/* tasks {}, scratch {}, {} */", program.tasks, program.scratch_bytes(), sizes.join(", "));
    Ok(())
}
