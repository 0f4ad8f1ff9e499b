//! Prints the C of a kernel of a µGraph: `emit_cpu FILE KERNEL [TARGET]`, where the kernel is the number of the first
//! tensor that it defines, and the target x86-64-v4 if none is named. All tensors are f32 in row-major order. The last line says what the C function is passed.

use orch_ir::DType;
use orch_mugraph::lower::{Request, Stored, cpu};
use orch_mugraph::{TensorId, parse};
use orch_thread::target::CPU_TARGETS;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(kernel)) = (args.next(), args.next()) else {
        return Err("usage: emit_cpu FILE KERNEL [TARGET]".into());
    };
    let name = args.next().unwrap_or_else(|| "x86-64-v4".into());
    let target = CPU_TARGETS.into_iter().find(|target| target.name == name).ok_or("no such target")?;
    let graph = parse(&std::fs::read_to_string(file)?)?;
    let stored: Vec<Stored> =
        graph.shapes().iter().map(|shape| Stored::row_major(DType::F32, shape)).collect();
    let request =
        Request { graph: &graph, kernel: TensorId(kernel.parse()?), stored: &stored, name: "kernel" };
    let mut program = cpu::lower(&request, target)?.program;
    orch_thread::passes::run_all(&mut program, &orch_thread::passes::PassContext::default(), &mut |_, _| {});
    println!("{}", orch_codegen::c::emit(&[&program], target));
    let sizes: Vec<String> = (program.buffers.iter().filter(|buffer| buffer.scope.is_global()))
        .map(|buffer| format!("{} {}", buffer.name, buffer.elems))
        .collect();
    println!("/* tasks {}, scratch {}, {} */", program.tasks, program.scratch_bytes(), sizes.join(", "));
    Ok(())
}
