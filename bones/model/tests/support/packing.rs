//! Matrices in the layout `panels-1` and images that hold them, written from the layout's description alone.

use serde_json::{Value, json};

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    F32,
    Bf16,
    Int8,
    Int4,
    Int4Min,
}

/// A tensor of an image.
#[derive(Clone, Debug)]
pub struct Stored {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A matrix [rows, cols] as numbers and as it is stored.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f32>,
    pub stored: Vec<Stored>,
}

/// Random numbers that are the same everywhere.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// −1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

impl Matrix {
    /// A matrix of given numbers, in f32 or bf16; bf16 keeps their upper halves.
    pub fn plain(name: &str, form: Form, (rows, cols): (usize, usize), mut values: Vec<f32>) -> Self {
        assert_eq!(values.len(), rows * cols);
        let panels = rows.div_ceil(16);
        let stored = if form == Form::Bf16 {
            for value in &mut values {
                *value = f32::from_bits(value.to_bits() & 0xffff_0000);
            }
            let words = cols.div_ceil(2);
            let mut halves = vec![0_u16; panels * words * 32];
            for (at, value) in values.iter().enumerate() {
                let (row, col) = (at / cols, at % cols);
                halves[((row / 16 * words + col / 2) * 16 + row % 16) * 2 + col % 2] = (value.to_bits() >> 16) as u16;
            }
            let bytes = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
            Stored { name: name.into(), dtype: "BF16", shape: vec![panels, words, 16, 2], bytes }
        } else {
            let mut words = vec![0.0_f32; panels * cols * 16];
            for (at, value) in values.iter().enumerate() {
                let (row, col) = (at / cols, at % cols);
                words[(row / 16 * cols + col) * 16 + row % 16] = *value;
            }
            Stored { name: name.into(), dtype: "F32", shape: vec![panels, cols, 16], bytes: floats(&words) }
        };
        Self { rows, cols, values, stored: vec![stored] }
    }

    /// A random matrix; numbers of about `size`.
    pub fn random(name: &str, form: Form, (rows, cols): (usize, usize), size: f32, rng: &mut Rng) -> Self {
        match form {
            Form::F32 | Form::Bf16 => {
                let values = (0..rows * cols).map(|_| rng.unit() * size).collect();
                Self::plain(name, form, (rows, cols), values)
            }
            _ => Self::quantised(name, form, (rows, cols), size, rng),
        }
    }

    fn quantised(name: &str, form: Form, (rows, cols): (usize, usize), size: f32, rng: &mut Rng) -> Self {
        let (panels, blocks) = (rows.div_ceil(16), cols / 32);
        let top = if form == Form::Int8 { 128.0 } else { 8.0 };
        let exponent = (size / top).log2().round() as i32;
        let mut q = vec![0_u8; panels * 16 * if form == Form::Int8 { cols } else { cols / 2 }];
        let (mut scales, mut mins) = (vec![0_u16; panels * blocks * 16], vec![0_u16; panels * blocks * 16]);
        let mut values = vec![0.0; rows * cols];
        for (row, block) in (0..rows).flat_map(|row| (0..blocks).map(move |block| (row, block))) {
            let (panel, lane) = (row / 16, row % 16);
            let exponent = exponent - (rng.bits() % 2) as i32;
            let (scale, at) = ((exponent as f32).exp2(), (panel * blocks + block) * 16 + lane);
            let min = -scale * 4.0;
            (scales[at], mins[at]) = (power(exponent), power(exponent + 2) | 0x8000);
            for i in 0..32 {
                let code = rng.bits() as u8;
                let nibble = code & 15;
                let word =
                    |element: usize| ((panel * cols / 4 + block * 8 + element / 4) * 16 + lane) * 4 + element % 4;
                let half = |i: usize| ((panel * blocks + block) * 64 + i / 4 * 16 + lane) * 4 + i % 4;
                values[row * cols + block * 32 + i] = if form == Form::Int8 {
                    q[word(i)] = code;
                    scale * (f32::from(code) - 128.0)
                } else {
                    q[half(i % 16)] |= if i < 16 { nibble } else { nibble << 4 };
                    let code = f32::from(nibble);
                    if form == Form::Int4 { scale * (code - 8.0) } else { scale * code + min }
                };
            }
        }
        let shape = if form == Form::Int8 { vec![panels, cols / 4, 16, 4] } else { vec![panels, blocks, 4, 16, 4] };
        let halves = |part: &str, halves: &[u16]| Stored {
            name: format!("{name}.{part}"),
            dtype: "F16",
            shape: vec![panels, blocks, 16],
            bytes: halves.iter().flat_map(|h| h.to_le_bytes()).collect(),
        };
        let mut stored = vec![Stored { name: format!("{name}.q"), dtype: "U8", shape, bytes: q }];
        stored.push(halves("scale", &scales));
        stored.extend((form == Form::Int4Min).then(|| halves("min", &mins)));
        Self { rows, cols, values, stored }
    }
}

/// A vector of an image.
pub fn vector(name: &str, values: &[f32]) -> Stored {
    Stored { name: name.into(), dtype: "F32", shape: vec![values.len()], bytes: floats(values) }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// 2^exponent as a 16-bit float.
fn power(exponent: i32) -> u16 {
    assert!((-14..16).contains(&exponent));
    ((exponent + 15) as u16) << 10
}

/// A safetensors image, wider elements first.
pub fn image(tensors: &[Stored]) -> Vec<u8> {
    let mut sorted: Vec<&Stored> = tensors.iter().collect();
    sorted.sort_by_key(|tensor| ["F32", "BF16", "F16", "U8"].iter().position(|dtype| *dtype == tensor.dtype));
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for Stored { name, dtype, shape, bytes } in sorted {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry: Value = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
