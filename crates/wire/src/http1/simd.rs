//! Classifies sixteen bytes at a time with SIMD instructions.

use wide::u8x16;

/// Sixteen bytes, the width of one SIMD register.
pub(super) type Block = [u8; 16];

/// Returns the number of bytes before the first control character; 16 if there is none.
#[inline]
pub(super) fn count_before_control(block: &Block) -> usize {
    let bytes = u8x16::new(*block);
    find_first_set(mask_at_most(bytes, 0x1f) | bytes.simd_eq(u8x16::splat(0x7f)))
}

/// Returns the number of leading letters, digits and `-`, of which nearly all field names consist.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "each byte wraps around for itself")]
pub(super) fn count_common_name_bytes(block: &Block) -> usize {
    let bytes = u8x16::new(*block);
    // The bit 0x20 turns an upper-case letter into its lower-case letter.
    let letters = mask_at_most((bytes | u8x16::splat(0x20)) - u8x16::splat(b'a'), b'z' - b'a');
    let digits = mask_at_most(bytes - u8x16::splat(b'0'), 9);
    let dashes = bytes.simd_eq(u8x16::splat(b'-'));
    find_first_set(!(letters | digits | dashes))
}

/// Returns a mask with all bits set in each byte that is at most `bound`.
#[inline]
fn mask_at_most(bytes: u8x16, bound: u8) -> u8x16 {
    bytes.min(u8x16::splat(bound)).simd_eq(bytes)
}

/// Returns the index of the first byte of `mask` with all bits set; 16 if there is none.
#[inline]
fn find_first_set(mask: u8x16) -> usize {
    (mask.to_bitmask() | 0x1_0000).trailing_zeros() as usize
}
