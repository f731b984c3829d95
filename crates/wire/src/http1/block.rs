//! Sixteen bytes tested at once: where the first one of another kind is.

use wide::u8x16;

/// What is tested at once.
pub(super) type Block = [u8; 16];

/// How many bytes at the start are no control characters, 16 when none is.
#[inline]
pub(super) fn before_control(block: &Block) -> usize {
    let bytes = u8x16::new(*block);
    first(at_most(bytes, 0x1f) | bytes.simd_eq(u8x16::splat(0x7f)))
}

/// How many bytes at the start are letters, digits or `-`, as nearly all of a field name is.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "each byte wraps around for itself")]
pub(super) fn before_uncommon(block: &Block) -> usize {
    let bytes = u8x16::new(*block);
    let letters = at_most((bytes | u8x16::splat(0x20)) - u8x16::splat(b'a'), b'z' - b'a');
    let digits = at_most(bytes - u8x16::splat(b'0'), 9);
    let dashes = bytes.simd_eq(u8x16::splat(b'-'));
    first(!(letters | digits | dashes))
}

#[inline]
fn at_most(bytes: u8x16, bound: u8) -> u8x16 {
    bytes.min(u8x16::splat(bound)).simd_eq(bytes)
}

/// Where the first byte of all ones is.
#[inline]
fn first(found: u8x16) -> usize {
    (found.to_bitmask() | 0x1_0000).trailing_zeros() as usize
}
