//! Descriptions are read strictly: every key, every range, every name.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod support;

use serde_json::{Value, json};
use support::samples::{everything, tiny};
use tie_bones_model::description::{Activation, Description};
use tie_bones_model::rope;

fn read(json: &Value) -> Result<Description, String> {
    Description::from_json(&json.to_string()).map_err(|error| error.to_string())
}

/// What is said when the value at a path is another.
fn refused(path: &str, value: Value) -> String {
    let mut json = everything();
    let (parent, key) = path.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[key] = value;
    read(&json).unwrap_err()
}

#[test]
fn unknown_keys_are_refused_at_every_level() {
    for path in ["", "/attention/near", "/attention/near/rope", "/attention/far/rope/scaling"] {
        assert!(refused(&format!("{path}/surprise"), json!(1)).contains("surprise"));
    }
    for key in ["attention_bias", "rope"] {
        assert!(refused(&format!("/{key}"), json!(false)).contains(key));
    }
}

#[test]
fn keys_without_default_are_needed() {
    let with_default = ["embedding_scale", "attention_scale", "attention_softcap", "logit_softcap"];
    for key in everything().as_object().unwrap().keys() {
        let mut json = everything();
        json.as_object_mut().unwrap().remove(key);
        match read(&json) {
            Ok(_) => assert!(with_default.contains(&key.as_str()), "{key} has a default"),
            Err(error) => assert!(error.contains(&format!("missing field `{key}`")), "{error}"),
        }
    }
}

#[test]
fn values_out_of_range_are_refused_by_name_and_limit() {
    assert!(refused("/hidden_size", json!(0)).contains("hidden_size is 0, must be 1 to 65536"));
    assert!(refused("/query_heads", json!(3)).contains("query_heads is 3, must be a multiple of kv_heads"));
    assert!(refused("/kv_heads", json!(8)).contains("kv_heads is 8, must be 1 to 4"));
    assert!(refused("/norm_eps", json!(-1.0)).contains("norm_eps"));
    assert!(refused("/layer_count", json!(u64::MAX)).contains("layer_count"));
    assert!(refused("/vocab_size", json!(-1)).contains("invalid value"));
    assert!(refused("/activation", json!("relu")).contains("relu"));
    for key in ["embedding_scale", "attention_scale", "attention_softcap", "logit_softcap"] {
        for value in [json!(0.0), json!(-1.0), json!(1e7), json!(1e300)] {
            let error = refused(&format!("/{key}"), value);
            assert!(error.contains(&format!("{key} is ")) && error.contains("must be 0.000001 to 1000000"), "{error}");
        }
    }
    let rope = |key: &str, value| refused(&format!("/attention/near/rope/{key}"), value);
    assert!(rope("rotary_dim", json!(18)).contains("attention.near.rope.rotary_dim is 18, must be 2 to 16"));
    assert!(rope("rotary_dim", json!(7)).contains("even"));
    assert!(rope("theta", json!(0.0)).contains("attention.near.rope.theta is 0"));
    let factor = refused("/attention/far/rope/scaling/factor", json!(0.5));
    assert!(factor.contains("attention.far.rope.scaling.factor is 0.5, must be 1 to"), "{factor}");
    assert!(refused("/attention/near/window", json!(0)).contains("attention.near.window is 0, must be 1 to"));
}

#[test]
fn the_former_layout_asks_for_another_import() {
    let error = refused("/layout", json!("rows-1"));
    assert!(error.contains(r#"layout is "rows-1", must be "panels-1": import the model again"#), "{error}");
}

#[test]
fn patterns_and_kinds_must_fit_each_other() {
    assert!(refused("/layer_pattern", json!([])).contains("length of layer_pattern is 0, must be 1 to 4"));
    assert!(refused("/layer_pattern", json!(vec!["near"; 5])).contains("length of layer_pattern is 5"));
    assert!(
        refused("/layer_pattern", json!(["near", "other", "far", "bare"]))
            .contains("layer_pattern is other, must be of")
    );
    assert!(
        refused("/layer_pattern", json!(["near", "far"])).contains("attention is bare, must be used by layer_pattern")
    );
    assert!(refused("/attention", json!({})).contains("number of kinds of attention is 0, must be 1 to 8"));
    let many: serde_json::Map<_, _> = (0..9).map(|i| (format!("k{i}"), json!({}))).collect();
    assert!(refused("/attention", many.into()).contains("number of kinds of attention is 9"));
    for name in ["", "Near", "9", "a-b", &"a".repeat(33)] {
        let mut json = tiny();
        json["layer_pattern"] = json!([name]);
        json["attention"] = json!({name: {}});
        assert!(read(&json).unwrap_err().contains("must be named [a-z][a-z0-9_]{0,31}"), "{name}");
    }
    let twice = tiny().to_string().replace(r#""full":{"#, r#""full":{},"full":{"#);
    assert!(Description::from_json(&twice).unwrap_err().to_string().contains("attention: full occurs twice"));
}

#[test]
fn every_scaling_is_read_and_bounded() {
    let kinds = [
        json!({"kind": "none"}),
        json!({"kind": "linear", "factor": 2.0}),
        json!({"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_context_length": 8192}),
        json!({"kind": "yarn", "factor": 4.0, "original_context_length": 4096, "beta_fast": 32.0, "beta_slow": 1.0}),
    ];
    for scaling in kinds {
        let mut json = tiny();
        json["attention"]["full"]["rope"]["scaling"] = scaling.clone();
        read(&json).unwrap();
        for key in scaling.as_object().unwrap().keys().filter(|key| *key != "kind") {
            json["attention"]["full"]["rope"]["scaling"] = scaling.clone();
            json["attention"]["full"]["rope"]["scaling"][key] = json!(0);
            assert!(read(&json).unwrap_err().contains(&format!("rope.scaling.{key} is 0")), "{key}");
        }
    }
    assert!(refused("/attention/far/rope/scaling", json!({"kind": "none", "factor": 2.0})).contains("factor"));
}

#[test]
fn layers_take_kinds_in_turn_and_tables_in_the_order_of_names() {
    let mut json = everything();
    json["layer_count"] = json!(6);
    let d = read(&json).unwrap();
    assert_eq!(d.activation, Activation::GeluTanh);
    let tables = rope::tables(&d);
    assert_eq!(tables.iter().map(|t| t.frequencies.len()).collect::<Vec<_>>(), [8, 4], "far, near");
    let layers: Vec<_> = (0..6).map(|layer| rope::attention(&d, layer)).collect();
    assert_eq!(layers.iter().map(|a| a.rope).collect::<Vec<_>>(), [Some(1), Some(1), Some(0), None, Some(1), Some(1)]);
    assert_eq!(layers.iter().map(|a| a.window).collect::<Vec<_>>(), [Some(3), Some(3), None, None, Some(3), Some(3)]);
    assert_eq!((layers[0].scale, layers[0].softcap), (0.3, Some(2.0)));
    let plain = rope::attention(&read(&tiny()).unwrap(), 0);
    assert_eq!((plain.scale, plain.softcap, plain.window), (0.25, None, None));
}
