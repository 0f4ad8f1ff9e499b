//! An executable says what its proofs are bound to, and `verify` notices what was exchanged, link by link.
//!
//! All edits are of the manifest as it is in memory: the file's own hash guards against accidents only.

mod attention;
mod cache_dir;
mod plan_options;

use attention::attention;
use cache_dir::CacheDir;
use orch_ir::generate::random_inputs;
use orch_ir::{BinaryFn, DType, PrimOp, ScalarFn};
use orchestrion::manifest::{ActionInfo, Manifest, SlotMemory, Update};
use orchestrion::verification::{Verification, verify};
use orchestrion::{Artifact, Executable, Model, Precision, RunOptions, Tensor};
use plan_options::options;

/// A model with a proved part, compiled for this CPU.
struct Compiled {
    model: Model,
    artifact: Artifact,
    inputs: Vec<Tensor>,
}

impl Compiled {
    fn new() -> Self {
        let cache = CacheDir::new("proved-parts");
        // On CPUs it pays once the scores do not fit the caches.
        let mut graph = attention(128, 4096);
        // An input that is updated in place: the copy of its old value is a step before those of the part.
        let count = graph.add_input("count", DType::F32, [64]);
        let next = graph
            .add(PrimOp::Map(ScalarFn::Binary(BinaryFn::Add)), &[count, count])
            .expect("operands that fit");
        graph.add_output("count", next);
        let update = Update { output: graph.outputs.len() - 1, input: graph.inputs.len() - 1 };
        let inputs = random_inputs(&graph, 5);
        let model = Model { updates: vec![update], ..Model::from_graph(graph) };
        let artifact = model.compile(&options(&cache, None, Precision::F32)).expect("it compiles");
        Self { model, artifact, inputs }
    }

    /// What `verify` says once the manifest was changed.
    fn verified(&self, edit: impl FnOnce(&mut Manifest)) -> Verification {
        let mut artifact = self.artifact.clone();
        edit(&mut artifact.manifest);
        let executable = Executable::load(artifact, RunOptions::default()).expect("it loads");
        let mut context = executable.context().expect("there is memory");
        verify(&self.model, &mut context, &self.inputs, None).expect("it runs").verification
    }

    /// The file after an edit of the manifest, read again.
    fn written(&self, edit: impl FnOnce(&mut Manifest)) -> Result<Artifact, String> {
        let mut artifact = self.artifact.clone();
        edit(&mut artifact.manifest);
        let bytes = artifact.to_bytes().expect("it has a form").into();
        Artifact::parse(&bytes).map_err(|error| error.to_string())
    }
}

/// Why the first part fails.
fn reason(verification: &Verification) -> String {
    assert!(!verification.pass, "{verification:?}");
    verification.parts[0].reason.clone().unwrap_or_else(|| panic!("{verification:?}"))
}

/// What is bound to what, and what is noticed: one compilation serves all cases.
#[test]
fn what_was_exchanged_is_noticed() {
    let compiled = Compiled::new();
    let manifest = &compiled.artifact.manifest;
    let [part] = &manifest.parts[..] else { panic!("{} parts", manifest.parts.len()) };
    assert_eq!((part.inputs.len(), part.unstable.as_deref()), (3, None));
    assert!(part.premises.iter().any(|premise| premise.contains("maxima")), "{:?}", part.premises);
    let step = part.kernels[0].step;
    let ActionInfo::Kernel(kernel) = manifest.steps[step].action else { panic!("a kernel") };
    let name = manifest.steps[step].name.clone();

    let good = compiled.verified(|_| {});
    assert!(good.pass && good.unbound.is_none(), "{good:?}");
    let tested = &good.parts[0].kernel_test;
    assert!(tested.inputs > 0 && tested.max_scaled < 1e-4 && tested.reason.is_none(), "{tested:?}");
    assert_eq!(good.proofs[good.parts[0].proof].checker.answer, "proved");
    assert_eq!(compiled.written(|_| {}).expect("it is read").manifest.parts, manifest.parts);

    // A proof of something else, although it holds: of the program and itself.
    let other = orch_mugraph::parse(&manifest.proofs[0].program).expect("a program");
    let other =
        orch_mugraph::verify(&other, &other, &orch_mugraph::VerifyOptions::default()).expect("a proof");
    let said = compiled.verified(|manifest| manifest.proofs[0] = other.clone());
    assert!(said.proofs[0].pass);
    assert!(reason(&said).contains(&name) && reason(&said).contains("the µGraph of its proof"), "{said:?}");
    // Its hash is right, but it has no kernel like that.
    let said = compiled.verified(|manifest| {
        manifest.parts[0].candidate = blake3::hash(other.candidate.as_bytes()).to_hex().to_string();
        manifest.proofs[0] = other.clone();
    });
    assert!(reason(&said).contains(&name), "{said:?}");
    // A proof whose texts were edited.
    let said = compiled.verified(|manifest| {
        let program = &mut manifest.proofs[0].program;
        *program = program.replacen("exp", "square", 1);
    });
    assert!(!said.proofs[0].pass && reason(&said).contains("the program of its proof"), "{said:?}");

    // Another kernel, or its text.
    let said = compiled.verified(|manifest| manifest.kernels[kernel].source.push(' '));
    assert!(reason(&said).contains(&name) && reason(&said).contains("its source"), "{said:?}");
    let said = compiled.verified(|manifest| manifest.parts[0].kernels[0].fingerprint = "x".to_owned());
    assert!(reason(&said).contains("is not the one that was lowered"), "{said:?}");
    let said = compiled.verified(|manifest| manifest.parts[0].kernels[0].defines += 1);
    assert!(reason(&said).contains("of its µGraph"), "{said:?}");
    let error = compiled.written(|manifest| manifest.kernels[kernel].tasks += 1).expect_err("a fingerprint");
    assert!(error.contains("is not the one that was compiled"), "{error}");

    // Inputs that are permuted: names, and places.
    let said = compiled.verified(|manifest| manifest.parts[0].inputs.swap(0, 1));
    assert!(reason(&said).contains("the inputs of its program"), "{said:?}");
    let said = compiled.verified(|manifest| {
        let [first, second, ..] = &mut manifest.parts[0].inputs[..] else { panic!("inputs") };
        std::mem::swap(&mut first.name, &mut second.name);
    });
    assert!(reason(&said).contains("the inputs of its program"), "{said:?}");
    let swapped = |manifest: &mut Manifest| {
        let slots = &mut manifest.steps[step].slots;
        let read: Vec<usize> = (0..slots.len()).filter(|&at| !slots[at].written).collect();
        // Keys and values are as large.
        let same = |a: usize, b: usize| slots[a].bytes == slots[b].bytes && slots[a].shape != slots[b].shape;
        let pairs = read.iter().flat_map(|&a| read.iter().map(move |&b| (a, b)));
        let (a, b) = pairs.into_iter().find(|&(a, b)| same(a, b)).expect("two of a size");
        let (first, second) = (slots[a].memory, slots[b].memory);
        (slots[a].memory, slots[b].memory) = (second, first);
        (a, b)
    };
    let said = compiled.verified(|manifest| {
        swapped(manifest);
    });
    assert!(reason(&said).contains("another tensor than when it was compiled"), "{said:?}");
    // Bound to the places that are wrong: then the result is.
    let said = compiled.verified(|manifest| {
        let (a, b) = swapped(manifest);
        let arguments = &mut manifest.parts[0].kernels[0].arguments;
        let (first, second) = (arguments[a].memory, arguments[b].memory);
        (arguments[a].memory, arguments[b].memory) = (second, first);
    });
    assert!(said.parts[0].reason.is_none() && !said.outputs[0].pass && !said.pass, "{said:?}");
    let said = compiled.verified(|manifest| {
        let arguments = &mut manifest.parts[0].kernels[0].arguments;
        let at =
            arguments.iter().position(|argument| argument.memory == SlotMemory::Input(0)).expect("queries");
        arguments[at].name = "x9".to_owned();
    });
    assert!(reason(&said).contains("`x9` is no such tensor"), "{said:?}");

    // A part that is not stated.
    let said = compiled.verified(|manifest| manifest.parts.clear());
    assert!(!said.pass && said.unbound.as_ref().is_some_and(|what| what.contains(&name)), "{said:?}");
    let said = compiled.verified(|manifest| {
        let again = manifest.parts[0].clone();
        manifest.parts.push(again);
    });
    assert!(!said.pass && said.unbound.as_ref().is_some_and(|what| what.contains("twice")), "{said:?}");
}

/// Another kernel under right hashes: the part is run alone, and is not its µGraph.
#[test]
fn kernels_that_compute_something_else_are_noticed() {
    let cache = CacheDir::new("proved-parts-other");
    let compile = |graph: orch_ir::PrimGraph| {
        let model = Model::from_graph(graph.clone());
        let artifact = model.compile(&options(&cache, None, Precision::F32)).expect("it compiles");
        (model, artifact, random_inputs(&graph, 5))
    };
    let (model, mut artifact, inputs) = compile(attention(128, 4096));
    // The same shapes; results are doubled.
    let text = orch_ir::text::print(&attention(128, 4096));
    let last = "  output \"o\" t11";
    assert!(text.contains(last), "{text}");
    let doubled = text.replace(last, "  t12: f32[2, 128, 16] = add t11, t11\n  output \"o\" t12");
    let doubled = orch_ir::text::parse(&doubled).unwrap_or_else(|error| panic!("{error:?}\n{doubled}"));
    let (_, other, _) = compile(doubled);
    let (own, theirs) = (&mut artifact, &other);
    let number = |artifact: &Artifact| match artifact.manifest.steps
        [artifact.manifest.parts[0].kernels[0].step]
        .action
    {
        ActionInfo::Kernel(number) => number,
        _ => panic!("a kernel"),
    };
    let (at, from) = (number(own), number(theirs));
    let kernel = theirs.manifest.kernels[from].clone();
    let library = own.manifest.kernels[at].library;
    own.libraries[library] = theirs.libraries[kernel.library].clone();
    own.manifest.library_bytes[library] = own.libraries[library].len();
    let bound = &mut own.manifest.parts[0].kernels[0];
    bound.source = blake3::hash(kernel.source.as_bytes()).to_hex().to_string();
    bound.fingerprint.clone_from(&kernel.fingerprint);
    own.manifest.kernels[at] = orchestrion::manifest::KernelInfo { library, ..kernel };
    let executable = Executable::load(artifact, RunOptions::default()).expect("it loads");
    let mut context = executable.context().expect("there is memory");
    let said = verify(&model, &mut context, &inputs, None).expect("it runs").verification;
    let part = &said.parts[0];
    assert!(part.reason.is_none() && !part.pass && !part.kernel_test.pass(), "{said:?}");
}
