/* CRC32C of bytes: the instruction of x86-64 processors takes eight bytes in three cycles, and one
   can begin in each cycle. So three lanes are summed side by side, then joined. */

#ifdef AVX2
INLINE uint32_t shifted_crc(uint32_t crc, int by) {
    const uint32_t(*t)[256] = (const uint32_t(*)[256])packio_crc_shifts[by];
    return t[0][crc & 255] ^ t[1][crc >> 8 & 255] ^ t[2][crc >> 16 & 255] ^ t[3][crc >> 24];
}
INLINE uint64_t eight_bytes(const uint8_t *at) {
    uint64_t bytes;
    memcpy(&bytes, at, 8);
    return bytes;
}
#endif

static uint32_t crc32c(const uint8_t *at, size_t length) {
    uint32_t crc = UINT32_MAX;
#ifdef AVX2
    for (; length >= 3 * CRC_LANE; at += 3 * CRC_LANE, length -= 3 * CRC_LANE) {
        uint64_t a = crc, b = 0, c = 0;
        for (int i = 0; i < CRC_LANE; i += 8) {
            a = _mm_crc32_u64(a, eight_bytes(at + i));
            b = _mm_crc32_u64(b, eight_bytes(at + CRC_LANE + i));
            c = _mm_crc32_u64(c, eight_bytes(at + 2 * CRC_LANE + i));
        }
        crc = shifted_crc((uint32_t)a, 1) ^ shifted_crc((uint32_t)b, 0) ^ (uint32_t)c;
    }
    for (; length >= 8; at += 8, length -= 8) crc = (uint32_t)_mm_crc32_u64(crc, eight_bytes(at));
    for (; length; at++, length--) crc = _mm_crc32_u8(crc, *at);
#else
    crc = packio_crc_by_tables(crc, at, length);
#endif
    return ~crc;
}
