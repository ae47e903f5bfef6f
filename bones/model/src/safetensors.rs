//! The header of a safetensors image, read as hostile input.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// Longest header accepted.
pub const MAX_HEADER_BYTES: usize = 100 << 20;

/// Element types that the weight layout uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 16-bit float.
    F16,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "BF16" => Self::Bf16,
            "F16" => Self::F16,
            "I8" => Self::I8,
            "U8" => Self::U8,
            _ => return None,
        })
    }

    /// Bytes of an element, which is also the alignment it needs.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }
}

/// Why an image was refused.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Too short to hold a header length.
    #[error("image has {0} bytes, fewer than a header length needs")]
    Truncated(usize),
    /// The header does not fit its limit or the image.
    #[error("header of {length} bytes exceeds {limit}")]
    Length {
        /// Claimed length.
        length: u64,
        /// The smaller of the limit and what the image holds.
        limit: usize,
    },
    /// Not the JSON that the format asks for, or a name twice.
    #[error("header: {0}")]
    Json(#[from] serde_json::Error),
    /// A tensor whose type, shape, place or alignment is wrong.
    #[error("tensor {name}: {fault}")]
    Tensor {
        /// Its name, shortened.
        name: String,
        /// What is wrong.
        fault: String,
    },
    /// Bytes that no tensor covers.
    #[error("data has {have} bytes, tensors cover {covered}")]
    Uncovered {
        /// Bytes after the header.
        have: usize,
        /// End of the last tensor.
        covered: usize,
    },
}

/// One tensor of an image. `start` counts from the beginning of the image.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Name as in the header.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// First byte within the image.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

/// Shortens and escapes a name for a message.
pub fn shown(name: &str) -> String {
    name.chars().take(80).flat_map(char::escape_default).collect()
}

/// Reads the header of `image`: every tensor is in range, aligned to its element, and none overlaps another.
pub fn tensors(image: &[u8]) -> Result<Vec<Tensor>, HeaderError> {
    let Some((length, rest)) = image.split_first_chunk::<8>() else {
        return Err(HeaderError::Truncated(image.len()));
    };
    let length = u64::from_le_bytes(*length);
    let limit = MAX_HEADER_BYTES.min(rest.len());
    if length > limit as u64 {
        return Err(HeaderError::Length { length, limit });
    }
    let header: Header = serde_json::from_slice(&rest[..length as usize])?;
    let data_start = 8 + length as usize;
    let data_len = image.len() - data_start;
    let mut tensors = header
        .0
        .into_iter()
        .map(|(name, entry)| place(name, &entry, data_start, data_len))
        .collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by_key(|t| (t.start, t.len));
    let mut end = data_start;
    for tensor in &tensors {
        if tensor.start != end {
            let fault =
                format!("starts at {}, the tensor before it ends at {}", tensor.start - data_start, end - data_start);
            return Err(HeaderError::Tensor { name: shown(&tensor.name), fault });
        }
        end += tensor.len;
    }
    if end != image.len() {
        return Err(HeaderError::Uncovered { have: data_len, covered: end - data_start });
    }
    Ok(tensors)
}

fn place(name: String, entry: &Entry, data_start: usize, data_len: usize) -> Result<Tensor, HeaderError> {
    let fault = |fault: String| HeaderError::Tensor { name: shown(&name), fault };
    let dtype = Dtype::parse(&entry.dtype).ok_or_else(|| fault(format!("type {} is not read", shown(&entry.dtype))))?;
    let elements = entry.shape.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim));
    let len = elements
        .and_then(|count| count.checked_mul(dtype.size()))
        .ok_or_else(|| fault("dimensions overflow".into()))?;
    let [begin, end] = entry.data_offsets;
    if begin > end || end > data_len {
        return Err(fault(format!("offsets {begin} to {end} leave the data of {data_len} bytes")));
    }
    if end - begin != len {
        return Err(fault(format!("has {} bytes, its shape needs {len}", end - begin)));
    }
    let start = data_start + begin;
    if start % dtype.size() != 0 {
        return Err(fault(format!("starts at byte {start}, must be aligned to {}", dtype.size())));
    }
    Ok(Tensor { dtype, shape: entry.shape.clone(), start, len, name })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("tensor {} occurs twice", shown(&name))));
            }
            if name == "__metadata__" {
                map.next_value::<HashMap<String, String>>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(Header(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    /// Pads the header so that data begins at a multiple of 8.
    fn aligned(header: &str, data: usize) -> Vec<u8> {
        image(&format!("{header:<width$}", width = header.len().next_multiple_of(8)), data)
    }

    fn refusal(image: &[u8]) -> String {
        tensors(image).unwrap_err().to_string()
    }

    #[test]
    fn hostile_headers_are_refused() {
        assert!(refusal(&[1, 2, 3]).contains("3 bytes"));
        assert!(refusal(&[255; 64]).contains("exceeds"));
        assert!(refusal(&image("{", 0)).contains("EOF"));
        let two = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        assert!(refusal(&image(two, 1)).contains("occurs twice"));
        let cases = [
            (r#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#, 8, "type F64"),
            (r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#, 8, "overflow"),
            (r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8]}}"#, 8, "overflow"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 4, "leave the data"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8, "leave the data"),
            (r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8, "its shape needs 12"),
            (r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#, 8, "tensors cover 4"),
            (r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#, 8, "starts at 4"),
            (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}}"#, 1, "unknown field"),
            (r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#, 1, "invalid value"),
        ];
        for (header, data, want) in cases {
            let error = refusal(&aligned(header, data));
            assert!(error.contains(want), "{error} lacks {want}");
        }
        let overlap = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
        assert!(refusal(&image(overlap, 6)).contains("tensor b: starts at 2"));
        let odd = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        assert!(
            refusal(&image(&format!("{odd:<width$}", width = odd.len().next_multiple_of(8) + 1), 4))
                .contains("aligned")
        );
    }

    #[test]
    fn good_images_are_read() {
        let header = r#"{"__metadata__":{"format":"x"},"b":{"dtype":"I8","shape":[2,3],"data_offsets":[4,10]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
        let found = tensors(&aligned(header, 10)).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].name.as_str(), found[1].len, found[1].shape.as_slice()), ("b", 6, &[2, 3][..]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = tensors(&bytes);
        }

        #[test]
        fn any_header_stays_within_the_image(begin in any::<usize>(), end in any::<usize>(), dim in any::<usize>()) {
            let header = format!(r#"{{"a":{{"dtype":"BF16","shape":[{dim}],"data_offsets":[{begin},{end}]}}}}"#);
            let bytes = aligned(&header, 16);
            if let Ok(found) = tensors(&bytes) {
                prop_assert!(found[0].start + found[0].len <= bytes.len());
            }
        }
    }
}
