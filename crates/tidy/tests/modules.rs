//! Modules of a crate do not depend on each other in circles.

use tidy::modules::Modules;

/// The crates that are kept free of circles.
const WITHOUT_CIRCLES: [&str; 5] =
    ["orch-compute", "orch-thread", "orch-template", "orch-codegen", "orchestrion"];

#[test]
fn no_modules_depend_on_each_other_in_a_circle() {
    let mut problems = String::new();
    for name in WITHOUT_CIRCLES {
        let modules = Modules::of_crate(name);
        assert!(modules.count() > 10, "{name} has {} modules", modules.count());
        let dependencies = modules.dependencies();
        for circle in modules.circles() {
            problems += &format!("{name}: a circle of {} modules\n", circle.len());
            for module in &circle {
                let back = dependencies[module].iter().filter(|other| circle.contains(other));
                let names: Vec<String> = back.map(|other| other.join("::")).collect();
                problems += &format!("  {} -> {}\n", module.join("::"), names.join(", "));
            }
        }
    }
    assert!(problems.is_empty(), "{problems}");
}
