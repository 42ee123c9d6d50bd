package luks

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/cpu"
)

func TestProcessorWithoutAES(t *testing.T) {
	defer func(has bool) { cpu.X86.HasAES = has }(cpu.X86.HasAES)
	cpu.X86.HasAES = false
	if newParallelAES(make([]byte, 16)) != nil {
		t.Error("AES instructions are used")
	}
}

// TestRoundKeysAtEndOfMemory checks that the assembly does not read past the round keys. It puts them
// at the end of a mapping, with every alignment of an array of words.
func TestRoundKeysAtEndOfMemory(t *testing.T) {
	if !cpu.X86.HasAES {
		t.Skip("this CPU has no AES instructions")
	}
	page := fenced(t)
	for _, keySize := range []int{16, 32} {
		p := newParallelAES(make([]byte, keySize))
		want := make([]byte, 2*groupSize)
		if rest := p.encrypt(want, &mask{1}); len(rest) > 0 {
			t.Errorf("of two groups, %d bytes were not encrypted in parallel", len(rest))
		}
		for shift := 0; shift < 16; shift += 4 {
			at := func(keys []roundKey) []roundKey {
				first := &page[len(page)-len(keys)*len(keys[0])*4-shift]
				moved := unsafe.Slice((*roundKey)(unsafe.Pointer(first)), len(keys))
				copy(moved, keys)
				return moved
			}
			b := make([]byte, len(want))
			(&parallelAES{encryption: at(p.encryption)}).encrypt(b, &mask{1})
			if !bytes.Equal(b, want) {
				t.Fatalf("key of %d bytes, %d before the end: wrong ciphertext", keySize, shift)
			}
			(&parallelAES{decryption: at(p.decryption)}).decrypt(b, &mask{1})
			if !bytes.Equal(b, make([]byte, len(want))) {
				t.Fatalf("key of %d bytes, %d before the end: wrong plaintext", keySize, shift)
			}
		}
	}
}
