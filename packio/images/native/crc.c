/* CRC32C by tables, for processors without an instruction, and the tables that join checksums.

   Source: RFC 3720, B.4: the polynomial 1EDC6F41, bits reversed. M. Kounavis and F. Berry, "A
   Systematic Approach to Building High Performance, Software-based, CRC Generators", 2005: eight
   tables take eight bytes at a time. */

#include "core.h"

uint32_t packio_crc_bytes[8][256];    /* of a byte, and of one with 1 to 7 zeros behind it */
uint32_t packio_crc_shifts[2][4][256]; /* what CRC_LANE, 2 * CRC_LANE zeros make of each byte of a
                                          checksum */

uint32_t packio_crc_by_tables(uint32_t crc, const uint8_t *at, size_t length) {
    const uint32_t(*t)[256] = (const uint32_t(*)[256])packio_crc_bytes;
    for (; length >= 8; at += 8, length -= 8) {
        uint32_t a = crc ^ (at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = t[7][a & 255] ^ t[6][a >> 8 & 255] ^ t[5][a >> 16 & 255] ^ t[4][a >> 24] ^
              t[3][at[4]] ^ t[2][at[5]] ^ t[1][at[6]] ^ t[0][at[7]];
    }
    while (length--) crc = crc >> 8 ^ t[0][(crc ^ *at++) & 255];
    return crc;
}

static __attribute__((constructor)) void make_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        packio_crc_bytes[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) {
            uint32_t crc = packio_crc_bytes[k - 1][i];
            packio_crc_bytes[k][i] = crc >> 8 ^ packio_crc_bytes[0][crc & 255];
        }
    static const uint8_t zeros[CRC_LANE];
    for (int bit = 0; bit < 32; bit++) { /* a checksum of several bits is the sum of theirs */
        uint32_t one = packio_crc_by_tables(1u << bit, zeros, CRC_LANE);
        uint32_t shifted[2] = {one, packio_crc_by_tables(one, zeros, CRC_LANE)};
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < 256; i++)
                if (i >> (bit & 7) & 1) packio_crc_shifts[s][bit >> 3][i] ^= shifted[s];
    }
}
