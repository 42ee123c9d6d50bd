package luks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
)

// metadataOf returns the JSON of a header of cryptsetup 2.6.1, with fast key slots and without the
// random fields.
func metadataOf(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/metadata.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// makeCopy returns a copy of a header for the given offset.
func makeCopy(magic, json string, size, offset, sequence uint64) []byte {
	b := make([]byte, size)
	copy(b, magic)
	binary.BigEndian.PutUint16(b[6:], 2)
	binary.BigEndian.PutUint64(b[8:], size)
	binary.BigEndian.PutUint64(b[16:], sequence)
	copy(b[72:], "sha256")
	binary.BigEndian.PutUint64(b[256:], offset)
	copy(b[binarySize:], json)
	return seal(b)
}

// seal sets the checksum of a header.
func seal(b []byte) []byte {
	clear(b[checksumOffset : checksumOffset+64])
	sum := sha256.Sum256(b)
	copy(b[checksumOffset:], sum[:])
	return b
}

// makeDisk returns a disk with two copies of a header and a payload of 4 KiB.
func makeDisk(first, second string) []byte {
	const size = minCopySize
	b := make([]byte, MaxOffset+4096)
	copy(b, makeCopy(firstMagic, first, size, 0, 3))
	copy(b[size:], makeCopy(secondMagic, second, size, size, 3))
	return b
}

func read(b []byte) (*Header, error) { return Read(bytes.NewReader(b), int64(len(b))) }

func TestRead(t *testing.T) {
	json := metadataOf(t)
	h, err := read(makeDisk(json, json))
	if err != nil {
		t.Fatal(err)
	}
	if h.Offset != 16<<20 || h.SectorSize != 512 || h.KeySize != 32 || h.ivTweak != 0 {
		t.Errorf("header is %+v", h)
	}
}

func TestReadUsesCopyOfCryptsetup(t *testing.T) {
	json := metadataOf(t)
	newer := strings.Replace(json, `"sector_size":512`, `"sector_size":4096`, 1)
	const size = minCopySize
	tests := []struct {
		name   string
		change func(b []byte)
		want   int
	}{
		{"the first", func([]byte) {}, 512},
		{"a bit flipped in the first", func(b []byte) { b[5000] ^= 1 }, 4096},
		{"no first copy", func(b []byte) { clear(b[:size]) }, 4096},
		{"a bit flipped in the second", func(b []byte) { b[size+5000] ^= 1 }, 512},
		{"the second is newer", func(b []byte) { copy(b[size:], makeCopy(secondMagic, newer, size, size, 4)) }, 4096},
		{"no first copy, and a larger second copy", func(b []byte) {
			clear(b[:2*size])
			copy(b[4*size:], makeCopy(secondMagic, newer, 4*size, 4*size, 4))
		}, 4096},
		{"an old second copy of a larger header", func(b []byte) {
			copy(b[4*size:], makeCopy(secondMagic, newer, 4*size, 4*size, 9))
		}, 512},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := makeDisk(json, newer)
			test.change(b)
			h, err := read(b)
			if err != nil {
				t.Fatal(err)
			}
			if h.SectorSize != test.want {
				t.Errorf("Read used the copy with sectors of %d, want %d", h.SectorSize, test.want)
			}
		})
	}
}

func TestReadRefusesDisks(t *testing.T) {
	json := metadataOf(t)
	hostile := strings.Replace(json, `"memory":64`, `"memory":4194304`, 1)
	const size = minCopySize
	tests := []struct {
		name   string
		change func(b []byte) []byte
		want   string
	}{
		{"empty", func([]byte) []byte { return nil }, "too small"},
		{"smaller than a copy", func(b []byte) []byte { return b[:4096] }, "too small"},
		{"cut off", func(b []byte) []byte { return b[:8<<20] }, "truncated"},
		{"no header", func(b []byte) []byte { return make([]byte, len(b)) }, "no LUKS header"},
		{"LUKS1", func(b []byte) []byte { b[7] = 1; clear(b[size:]); return b }, "version 1"},
		{"both damaged", func(b []byte) []byte { b[5000]++; b[size+5000]++; return b }, "checksum is wrong"},
		{"another checksum", func(b []byte) []byte { copy(b[72:], "sha512"); return b }, "not SHA-256"},
		{"a first copy with another offset", func(b []byte) []byte {
			b[263] = 1
			seal(b[:size])
			clear(b[size:])
			return b
		}, "another offset"},
		{"an odd size", func(b []byte) []byte { b[14] = 0x41; clear(b[size:]); return b }, "invalid size"},
		{"a hostile second copy", func(b []byte) []byte {
			copy(b[size:], makeCopy(secondMagic, hostile, size, size, 1))
			return b
		}, "exceeds the"},
		{"a hostile copy that cryptsetup uses without the first", func(b []byte) []byte {
			copy(b[8*size:], makeCopy(secondMagic, hostile, 8*size, 8*size, 1))
			return b
		}, "exceeds the"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := read(test.change(makeDisk(json, json)))
			if _, ok := errors.AsType[*HeaderError](err); !ok || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want a *HeaderError with %q", err, test.want)
			}
		})
	}
}

func TestReadRefusesMetadata(t *testing.T) {
	json := metadataOf(t)
	tests := []struct{ old, new, want string }{
		{`"offset":"16777216"`, `"offset":"16777216","Offset":"32768"`, "ambiguous"},
		{`"memory":64`, `"memory":64,"memory":4194304`, "ambiguous"},
		{`"memory":64`, `"memory":4194304,"mEmory":64`, "ambiguous"},
		{`"keyslots":{`, `"keyſlots":{},"keyslots":{`, "ambiguous"},
		{`"tokens":{`, `"tokens":{"0":` + strings.Repeat("[", 40) + strings.Repeat("]", 40), "nested too deeply"},
		{`"tokens":{`, `"tokens":{{`, "invalid"},
		{`{`, `[]{`, "followed by other bytes"},
		{`{`, ``, "followed by other bytes"},
		{`{`, "\x00{", "followed by other bytes"},
		{`"sector_size":512`, `"sector_size":"512"`, "does not have the fields of LUKS2"},
		{`"sector_size":512`, `"sector_size":256`, "sectors of 256"},
		{`"sector_size":512`, `"sector_size":0`, "sectors of 0"},
		{`"sector_size":512`, `"sector_size":512,"flags":["in-reencryption"]`, "reencryption"},
		{`"sector_size":512`, `"sector_size":512,"integrity":{"type":"aead"}`, "authenticated"},
		{`"segments":{`, `"segments":{"1":{},`, "2 segments"},
		{`"type":"crypt"`, `"type":"linear"`, "not encrypted"},
		{`"iv_tweak":"0",
      "encryption":"aes-xts-plain64"`, `"iv_tweak":"0","encryption":"aes-cbc-essiv:sha256"`, "aes-xts-plain64"},
		{`"offset":"16777216"`, `"offset":"16777217"`, "invalid offset or size"},
		{`"offset":"16777216"`, `"offset":"-512"`, "invalid offset or size"},
		{`"offset":"16777216"`, `"offset":"512"`, "invalid offset or size"},
		{`"offset":"16777216"`, `"offset":"33554432"`, "at most"},
		{`"offset":"16777216"`, `"offset":"99999999999999999999"`, "invalid offset or size"},
		{`"size":"dynamic"`, `"size":"512"`, "fixed size"},
		{`"iv_tweak":"0"`, `"iv_tweak":"-1"`, "invalid offset or size"},
		{`"config":{`, `"config":{"requirements":{"mandatory":["online-reencrypt-v2"]},`, "requires"},
		{`"time":4`, `"time":0`, "exceeds the"},
		{`"time":4`, `"time":9223372036854775807`, "exceeds the"},
		{`"time":4`, `"time":2000000`, "exceeds the"},
		{`"memory":64`, `"memory":2097153`, "exceeds the"},
		{`"memory":64`, `"memory":-1`, "exceeds the"},
		{`"cpus":2`, `"cpus":100000`, "exceeds the"},
		{`"type":"argon2i"`, `"type":"scrypt"`, "key derivation"},
		{`"type":"argon2i"`, `"type":"pbkdf2","hash":"sha256","iterations":4000000000`, "exceeds the"},
		{`"stripes":4000`, `"stripes":400000000`, "stripes"},
		{`"type":"luks2"`, `"type":"reencrypt"`, "type of key slot"},
		{`"size":"131072"`, `"size":"1310720000"`, "invalid offset or size"},
		{`"size":"131072"`, `"size":"131"`, "invalid offset or size"},
		{`"offset":"32768"`, `"offset":"16776704"`, "invalid offset or size"},
		{`"key_size":32,
      "af"`, `"key_size":16,"af"`, "256"},
		{`"segments":[
        "0"`, `"segments":["1"`, "0 digests"},
		{`"iterations":1000`, `"iterations":1000000000`, "exceeds the"},
		{`"hash":"sha256",
      "iterations"`, `"hash":"md5","iterations"`, "digest"},
		{`"digest":"`, `"digest":"","more":"`, "invalid length"},
	}
	for _, test := range tests {
		changed := strings.Replace(json, test.old, test.new, 1)
		if changed == json {
			t.Fatalf("%s is not in the header", test.old)
		}
		_, err := read(makeDisk(changed, changed))
		if _, ok := errors.AsType[*HeaderError](err); !ok || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error is %v, want a *HeaderError with %q", test.new, err, test.want)
		}
	}
}

func TestVersion(t *testing.T) {
	for head, want := range map[string]int{"LUKS\xba\xbe\x00\x02": 2, "LUKS\xba\xbe\x00\x01": 1, "LUKS\xba\xbe\x00\x03": 0, "LUKS\xba\xbe": 0, "": 0, "QFI\xfb": 0} {
		if got := Version([]byte(head)); got != want {
			t.Errorf("version of %q is %d, want %d", head, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	json := metadataOf(f)
	whole := makeDisk(json, json)
	f.Add(whole[:2*minCopySize], int64(len(whole)), true)
	f.Add(whole[:2*minCopySize], int64(len(whole)), false)
	f.Add([]byte(json), int64(1<<40), true)
	f.Fuzz(func(t *testing.T, b []byte, size int64, wrap bool) {
		if wrap && len(b) > binarySize { // random bytes would not have a valid checksum
			copy(b, makeCopy(firstMagic, string(b[binarySize:min(len(b), minCopySize)]), minCopySize, 0, 1)[:min(len(b), minCopySize)])
		}
		h, err := Read(bytes.NewReader(b), size)
		if _, refused := errors.AsType[*HeaderError](err); err != nil && !refused && size <= int64(len(b)) {
			t.Fatalf("read error: %v", err)
		}
		if err == nil && (h.Offset < 2*minCopySize || h.Offset > MaxOffset || h.Offset > size || h.KeySize != 32 && h.KeySize != 64 || MaxOffset%h.SectorSize != 0) {
			t.Fatalf("header is %+v", h)
		}
	})
}
