//! Converts between numbers and lower-case hexadecimal digits. Eight digits are converted at once, since the headers
//! of a traced request have over a hundred.

/// Writes the digits of a big-endian number, two for each byte. The length of `number` must be a multiple of
/// four bytes.
pub(super) fn write(number: &[u8], output: &mut [u8]) {
    let (byte_groups, _) = number.as_chunks::<4>();
    let (digit_groups, _) = output.as_chunks_mut::<8>();
    for (bytes, digits) in byte_groups.iter().zip(digit_groups) {
        *digits = nibbles_to_digits(spread_nibbles(u32::from_be_bytes(*bytes))).to_be_bytes();
    }
}

/// Parses 1 to 32 digits; `None` if the length is invalid or if there is another character.
pub(super) fn read(digits: &[u8]) -> Option<u128> {
    if digits.is_empty() || digits.len() > 32 {
        return None;
    }
    let (partial_group, groups) = digits.as_rchunks::<8>();
    let mut number = 0;
    if !partial_group.is_empty() {
        let mut group = [b'0'; 8];
        group.get_mut(8 - partial_group.len()..)?.copy_from_slice(partial_group);
        number = u128::from(parse_digits(group)?);
    }
    for group in groups {
        number = (number << 32) | u128::from(parse_digits(*group)?);
    }
    Some(number)
}

/// Parses eight digits; `None` if there is another character.
fn parse_digits(characters: [u8; 8]) -> Option<u32> {
    let digits = u64::from_be_bytes(characters);
    // Letters have a bit (0x40) that decimal digits lack, and their low bits begin at 1: `a` is 0x61, `0` is 0x30. So
    // the value of a letter is its low four bits plus 9.
    let letters = (digits >> 6) & ONES;
    let values = (digits & (0xf * ONES)) + 9 * letters;
    if values & (0xf0 * ONES) != 0 || nibbles_to_digits(values) != digits {
        return None;
    }
    // Each byte of `values` now has one nibble. Three steps join the nibbles to bytes, to 16 bits and to 32 bits.
    let bytes = (values | (values >> 4)) & 0x00ff_00ff_00ff_00ff;
    let words = (bytes | (bytes >> 8)) & 0x0000_ffff_0000_ffff;
    u32::try_from((words | (words >> 16)) & 0xffff_ffff).ok()
}

/// Spreads the eight nibbles of a number over eight bytes.
fn spread_nibbles(number: u32) -> u64 {
    let number = u64::from(number);
    let number = (number | (number << 16)) & 0x0000_ffff_0000_ffff;
    let number = (number | (number << 8)) & 0x00ff_00ff_00ff_00ff;
    (number | (number << 4)) & (0xf * ONES)
}

/// Converts eight nibbles to digits.
fn nibbles_to_digits(values: u64) -> u64 {
    let letters = ((values + 6 * ONES) >> 4) & ONES;
    values + u64::from(b'0') * ONES + u64::from(b'a' - b'0' - 10) * letters
}

/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_lower_case_digits_are_parsed() {
        for byte in 0..=u8::MAX {
            let expected = char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
            assert_eq!(read(&[byte]), expected.map(u128::from), "{byte:#x}");
            let padded = [*b"0000000", [byte, 0, 0, 0, 0, 0, 0]].concat();
            assert_eq!(read(&padded[..8]), expected.map(u128::from), "{byte:#x}");
        }
        assert_eq!(read(b""), None);
        assert_eq!(read(&[b'f'; 32]), Some(u128::MAX));
        assert_eq!(read(&[b'0'; 33]), None);
    }

    proptest! {
        #[test]
        fn written_ids_are_parsed(number: u128, length in 1..=32_usize) {
            let mut text = [0; 32];
            write(&number.to_be_bytes(), &mut text);
            prop_assert_eq!(std::str::from_utf8(&text).unwrap(), format!("{number:032x}"));
            let shift = 128 - 4 * length;
            let low = number << shift >> shift;
            prop_assert_eq!(read(&text[32 - length..]), Some(low));
        }
    }
}
