//! Images that do not hold the described model are refused by name; those that do are found where they lie.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod support;

use proptest::prelude::*;
use support::arithmetic::unpack;
use support::packing::{Form, Matrix, Rng, Stored, image};
use support::samples::{Sample, changed, everything};
use tie_bones_model::table::WeightTable;
use tie_bones_model::weights::{MatrixData, MatrixSpec, VectorSpec};

const FORMS: [Form; 5] = [Form::Int4Min, Form::F32, Form::Bf16, Form::Int8, Form::Int4];

fn sample() -> Sample {
    Sample::new(everything(), &FORMS)
}

fn refused(change: impl Fn(&mut Vec<Stored>)) -> String {
    let (sample, mut tensors) = (sample(), sample().tensors());
    change(&mut tensors);
    WeightTable::resolve(&sample.description(), &[&image(&tensors)]).unwrap_err().to_string()
}

fn find<'a>(tensors: &'a mut [Stored], name: &str) -> &'a mut Stored {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

#[test]
fn every_missing_tensor_is_refused() {
    for Stored { name, .. } in sample().tensors() {
        // Without its minimum a matrix is another one, and a good one.
        let Some(owner) = (!name.ends_with("weight.min")).then(|| name.trim_end_matches(".q")) else { continue };
        let error = refused(|tensors| tensors.retain(|other| other.name != name));
        assert_eq!(error, format!("weights: tensor {owner} is missing"));
    }
}

#[test]
fn every_tensor_of_another_shape_or_type_is_refused() {
    for tensor in sample().tensors() {
        let reshaped = refused(|tensors| find(tensors, &tensor.name).shape.push(1));
        assert!(reshaped.contains(&tensor.name) && reshaped.contains(", 1], must be "), "{reshaped}");
        let halved = refused(|tensors| {
            let tensor = find(tensors, &tensor.name);
            tensor.bytes.truncate(tensor.bytes.len() / 2);
            let last = tensor.shape.len() - 1;
            tensor.shape[last] /= 2;
        });
        assert!(halved.contains(&tensor.name) && halved.contains("must be "), "{halved}");
        let retyped = refused(|tensors| {
            let tensor = find(tensors, &tensor.name);
            tensor.dtype = "U8";
            tensor.shape = vec![tensor.bytes.len()];
        });
        assert!(retyped.contains(&tensor.name), "{retyped}");
    }
}

#[test]
fn extra_tensors_and_former_layouts_are_refused() {
    let extra = |name: &str| refused(|tensors| tensors.push(support::packing::vector(name, &[1.0])));
    for name in ["extra", "layers.4.attn_norm.weight", "norm.weight.min", "norm.bias"] {
        assert!(extra(name).contains(&format!("tensor {name} is not part of the described model")));
    }
    let plain = support::samples::tiny();
    let described = Sample { json: plain, ..sample() };
    let error = WeightTable::resolve(&described.description(), &[&image(&described.tensors())]).unwrap_err();
    assert!(error.to_string().contains("is not part of the described model"));
    let rows = refused(|tensors| find(tensors, "lm_head.weight").shape = vec![64, 64]);
    assert!(rows.contains("tensor lm_head.weight is F32 [64, 64], must be F32 [4, 64, 16]"), "{rows}");
    let (description, whole) = (sample().description(), image(&sample().tensors()));
    let twice = WeightTable::resolve(&description, &[&whole, &whole]).unwrap_err().to_string();
    assert!(twice.contains("weights image 1: tensor") && twice.contains("occurs in an earlier image"));
    let junk = WeightTable::resolve(&description, &[&whole, &[0; 4]]).unwrap_err().to_string();
    assert!(junk.contains("weights image 1: image has 4 bytes"));
}

#[test]
fn quantised_rows_fill_their_blocks() {
    let ragged = Sample::new(changed(serde_json::json!({"hidden_size": 33})), &[Form::F32]);
    let mut tensors = ragged.tensors();
    find(&mut tensors, "layers.1.attn.k.weight").name = "layers.1.attn.k.weight.q".into();
    let error = WeightTable::resolve(&ragged.description(), &[&image(&tensors)]).unwrap_err().to_string();
    assert!(error.contains("layers.1.attn.k.weight has rows of 33 elements, quantised rows must be a multiple of 32"));
}

#[test]
fn weights_may_lie_in_several_images() {
    let (sample, tensors) = (sample(), sample().tensors());
    let images = [image(&tensors[..9]), image(&tensors[9..])];
    let table = WeightTable::resolve(&sample.description(), &[&images[0], &images[1]]).unwrap();
    assert_eq!(table.bytes, tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum::<u64>());
    let embed = &sample.matrices["embed.weight"];
    assert_eq!(unpack(&table.embed, &images), embed.values);
}

#[test]
fn a_part_of_a_vector_is_its_bytes() {
    let data = MatrixData::F32(tie_bones_model::weights::Span { region: 3, start: 8, len: 40 });
    let MatrixData::F32(span) = data else { unreachable!() };
    let part = VectorSpec { len: 10, span }.part(4..7);
    assert_eq!((part.len, part.span.region, part.span.start, part.span.len), (3, 3, 24, 12));
    let whole = MatrixSpec::whole(40, 70, data);
    for (rows, cols) in [(8..40, 0..70), (0..40, 16..70), (0..41, 0..70), (0..40, 0..71), (16..16, 0..70)] {
        assert!(std::panic::catch_unwind(|| whole.part(rows, cols)).is_err());
    }
}

proptest! {
    #[test]
    fn parts_hold_the_rows_and_columns_they_name(
        form in prop_oneof![Just(Form::F32), Just(Form::Bf16), Just(Form::Int8), Just(Form::Int4), Just(Form::Int4Min)],
        rows in 1_usize..70, blocks in 1_usize..4, ragged in 0_usize..31, cut in (0_usize..4, 0_usize..4, 1_usize..99, 1_usize..99),
    ) {
        let cols = if matches!(form, Form::F32 | Form::Bf16) { blocks * 32 - ragged } else { blocks * 32 };
        let made = Matrix::random("embed.weight", form, (rows, cols), 1.0, &mut Rng(1));
        let (first_row, first_col) = (16 * cut.0.min((rows - 1) / 16), 32 * cut.1.min((cols - 1) / 32));
        let (last_row, last_col) = ((first_row + cut.2).min(rows), (first_col + cut.3).min(cols));
        let json = changed(serde_json::json!({"vocab_size": rows, "hidden_size": cols}));
        let mut sample = Sample::new(json, &[Form::F32]);
        sample.matrices.insert("embed.weight".into(), made.clone());
        let images = [image(&sample.tensors())];
        let table = WeightTable::resolve(&sample.description(), &[&images[0]]).unwrap();
        let part = table.embed.part(first_row..last_row, first_col..last_col);
        let want: Vec<f32> = (first_row..last_row)
            .flat_map(|row| made.values[row * cols + first_col..row * cols + last_col].to_vec())
            .collect();
        prop_assert_eq!(unpack(&part, &images), want);
    }
}
