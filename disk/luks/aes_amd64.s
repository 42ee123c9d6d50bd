#include "textflag.h"

// X0 to X7 have the blocks, X8 the key or mask that is xored with them, X9 the mask of the next
// block. The masks of this group are on the stack.

// In this field x¹²⁸ = x⁷+x²+x+1. The carry of the low half goes to the high half (IEEE 1619,
// multiplication by a primitive element).
DATA carries<>+0(SB)/8, $0x87
DATA carries<>+8(SB)/8, $1
GLOBL carries<>(SB), RODATA|NOPTR, $16

// MASKED loads a block, xors its mask, and multiplies the mask by x: it doubles each half, and
// spreads the lost bit over a word of X11 as a filter for the carry. There is no branch, because
// masks are secret.
#define MASKED(at, block) \
	MOVUPS at(DX), block; \
	PXOR X9, block; \
	MOVUPS X9, masks-(128-at)(SP); \
	PSHUFD $0x13, X9, X11; \
	PSRAL $31, X11; \
	PAND X10, X11; \
	PADDQ X9, X9; \
	PXOR X11, X9

// UNMASKED xors the mask again, and stores the block.
#define UNMASKED(at, block) \
	MOVUPS masks-(128-at)(SP), X8; \
	PXOR X8, block; \
	MOVUPS block, at(DX)

#define EACH(instruction) \
	instruction X8, X0; \
	instruction X8, X1; \
	instruction X8, X2; \
	instruction X8, X3; \
	instruction X8, X4; \
	instruction X8, X5; \
	instruction X8, X6; \
	instruction X8, X7

// GROUPS is the body of both directions. The first key is only xored; the last round has its own
// instruction.
#define GROUPS(round, lastRound) \
	MOVQ keys+0(FP), AX; \
	MOVQ rounds+8(FP), BX; \
	MOVQ b+16(FP), DX; \
	MOVQ groups+24(FP), CX; \
	MOVQ m+32(FP), R8; \
	MOVUPS (R8), X9; \
	MOVUPS carries<>(SB), X10; \
group: \
	MASKED(0, X0); \
	MASKED(16, X1); \
	MASKED(32, X2); \
	MASKED(48, X3); \
	MASKED(64, X4); \
	MASKED(80, X5); \
	MASKED(96, X6); \
	MASKED(112, X7); \
	MOVUPS (AX), X8; \
	EACH(PXOR); \
	LEAQ 16(AX), SI; \
	LEAQ -1(BX), DI; \
middle: \
	MOVUPS (SI), X8; \
	EACH(round); \
	ADDQ $16, SI; \
	DECQ DI; \
	JNZ middle; \
	MOVUPS (SI), X8; \
	EACH(lastRound); \
	UNMASKED(0, X0); \
	UNMASKED(16, X1); \
	UNMASKED(32, X2); \
	UNMASKED(48, X3); \
	UNMASKED(64, X4); \
	UNMASKED(80, X5); \
	UNMASKED(96, X6); \
	UNMASKED(112, X7); \
	ADDQ $128, DX; \
	DECQ CX; \
	JNZ group; \
	MOVUPS X9, (R8); \
	RET

// func encryptGroups(keys *roundKey, rounds int, b *byte, groups int, m *mask)
TEXT ·encryptGroups(SB), NOSPLIT, $128-40
	GROUPS(AESENC, AESENCLAST)

// func decryptGroups(keys *roundKey, rounds int, b *byte, groups int, m *mask)
TEXT ·decryptGroups(SB), NOSPLIT, $128-40
	GROUPS(AESDEC, AESDECLAST)

// func substitute(w uint32) uint32
TEXT ·substitute(SB), NOSPLIT, $0-12
	MOVL w+0(FP), X0
	PSHUFD $0, X0, X0
	AESKEYGENASSIST $0, X0, X0
	MOVL X0, ret+8(FP)
	RET

// func invert(k *roundKey)
TEXT ·invert(SB), NOSPLIT, $0-8
	MOVQ k+0(FP), AX
	MOVUPS (AX), X0
	AESIMC X0, X0
	MOVUPS X0, (AX)
	RET
