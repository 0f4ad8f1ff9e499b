//! The published saved form is read, and our own is written.

mod common;

use common::{mugraph, program};
use orch_mugraph::json::{import_saved, to_json};
use orch_mugraph::print;

/// RMSNorm and product in one kernel, with the fields of a saved graph that carry meaning.
const RMSNORM: &str = r#"[[
 {"op_type":"kn_input_op","input_tensors":[],"output_tensors":[{"dim":[2,4096,0,0],"num_dims":2,"guid":10}]},
 {"op_type":"kn_input_op","input_tensors":[],"output_tensors":[{"dim":[4096,6144,0,0],"num_dims":2,"guid":11}]},
 {"op_type":"kn_customized_op",
  "input_tensors":[{"dim":[2,4096,0,0],"num_dims":2,"guid":10},{"dim":[4096,6144,0,0],"num_dims":2,"guid":11}],
  "output_tensors":[{"dim":[2,6144,0,0],"num_dims":2,"guid":12}],
  "bgraph":{"grid_dim":{"x":256,"y":1,"z":1},"forloop_range":32,"operators":[
   {"op_type":"tb_input_op","dtensor":{"dim":[2,4096,0,0],"num_dims":2,"guid":10},"input_map":{"x":-1,"y":-1,"z":-1},
    "forloop_dim":1,"input_tensors":[],"output_tensors":[{"dim":[2,128,0,0],"num_dims":2,"guid":20}]},
   {"op_type":"tb_input_op","dtensor":{"dim":[4096,6144,0,0],"num_dims":2,"guid":11},"input_map":{"x":1,"y":-1,"z":-1},
    "forloop_dim":0,"input_tensors":[],"output_tensors":[{"dim":[128,24,0,0],"num_dims":2,"guid":21}]},
   {"op_type":"tb_forloop_accum_red_ld_rms_op","input_tensors":[{"dim":[2,128,0,0],"num_dims":2,"guid":20}],
    "output_tensors":[{"dim":[2,1,0,0],"num_dims":2,"guid":22}]},
   {"op_type":"tb_matmul_op","input_tensors":[{"dim":[2,128,0,0],"num_dims":2,"guid":20},
    {"dim":[128,24,0,0],"num_dims":2,"guid":21}],"output_tensors":[{"dim":[2,24,0,0],"num_dims":2,"guid":23}]},
   {"op_type":"tb_forloop_accum_nored_op","input_tensors":[{"dim":[2,24,0,0],"num_dims":2,"guid":23}],
    "output_tensors":[{"dim":[2,24,0,0],"num_dims":2,"guid":24}]},
   {"op_type":"tb_div_op","input_tensors":[{"dim":[2,24,0,0],"num_dims":2,"guid":24},
    {"dim":[2,1,0,0],"num_dims":2,"guid":22}],"output_tensors":[{"dim":[2,24,0,0],"num_dims":2,"guid":25}]},
   {"op_type":"tb_output_op","dtensor":{"dim":[2,6144,0,0],"num_dims":2,"guid":12},"output_map":{"x":1,"y":-1,"z":-1},
    "input_tensors":[{"dim":[2,24,0,0],"num_dims":2,"guid":25}],"output_tensors":[]}]}},
 {"op_type":"kn_output_op","input_tensors":[{"dim":[2,6144,0,0],"num_dims":2,"guid":12}],"output_tensors":[]}]]"#;

#[test]
fn a_saved_graph_is_read() {
    let graphs = import_saved(RMSNORM).unwrap();
    assert_eq!(graphs.len(), 1);
    let body = |text: String| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("    "));
        lines.map(|line| line.replace(", -, -]", "]")).collect()
    };
    assert_eq!(body(print(&graphs[0])), body(print(&mugraph("rmsnorm"))));
}

#[test]
fn what_cannot_be_read_is_located() {
    let message = |text: &str| import_saved(text).unwrap_err().to_string();
    let renamed = RMSNORM.replace("tb_div_op", "tb_frob_op");
    assert_eq!(message(&renamed), "saved graph 0, operator 2: no operator frob");
    let reshaped = RMSNORM.replace("[2,6144,0,0]", "[2,6145,0,0]");
    assert!(message(&reshaped).contains("a result of shape [2, 6144], saved as [2, 6145]"));
    assert!(message("{}").contains("expected a list of graphs"));
    assert!(message("[[{\"op_type\":\"kn_exp_op\"}]]").contains("output_tensors"));
}

#[test]
fn our_form_lists_nodes_shapes_and_outputs() {
    let json = to_json(&program("osdi_lora"));
    assert_eq!(json["nodes"].as_array().unwrap().len(), 8);
    assert_eq!(json["shapes"][7], serde_json::json!([16, 4096]));
    assert_eq!(json["outputs"][0], serde_json::json!(["o", 7]));
}
