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
	if newPipeline(make([]byte, 16)) != nil {
		t.Error("its instructions are used")
	}
}

// TestRoundKeys has the round keys at the edge of memory, wherever an array of words may
// lie.
func TestRoundKeys(t *testing.T) {
	if !cpu.X86.HasAES {
		t.Skip("this processor has no instructions for AES")
	}
	page := fenced(t)
	for _, keySize := range []int{16, 32} {
		p := newPipeline(make([]byte, keySize))
		want := make([]byte, 2*groupSize)
		if rest := p.encrypt(want, &mask{1}); len(rest) > 0 {
			t.Errorf("%d bytes of two groups are left for what is slow", len(rest))
		}
		for shift := 0; shift < 16; shift += 4 {
			at := func(keys []roundKey) []roundKey {
				first := &page[len(page)-len(keys)*len(keys[0])*4-shift]
				moved := unsafe.Slice((*roundKey)(unsafe.Pointer(first)), len(keys))
				copy(moved, keys)
				return moved
			}
			b := make([]byte, len(want))
			(&pipeline{encryption: at(p.encryption)}).encrypt(b, &mask{1})
			if !bytes.Equal(b, want) {
				t.Fatalf("%d bytes of key, %d before the edge: encrypted otherwise", keySize, shift)
			}
			(&pipeline{decryption: at(p.decryption)}).decrypt(b, &mask{1})
			if !bytes.Equal(b, make([]byte, len(want))) {
				t.Fatalf("%d bytes of key, %d before the edge: decrypted otherwise", keySize, shift)
			}
		}
	}
}
