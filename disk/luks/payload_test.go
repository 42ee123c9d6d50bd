package luks

import (
	"bytes"
	"crypto/aes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/crypto/xts"
)

// Vectors 4 and 10 of IEEE 1619, annex B: the first ones with whole sectors and keys of 32 and 64 bytes.
var vectors = []struct {
	key        string
	number     uint64
	ciphertext string
}{
	{
		"2718281828459045235360287471352631415926535897932384626433832795", 0,
		"27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89cc78cf7f5e543445f8333d8fa7f560000" +
			"05279fa5d8b5e4ad40e736ddb4d35412328063fd2aab53e5ea1e0a9f332500a5df9487d07a5c92cc512c8866c7e860ce" +
			"93fdf166a24912b422976146ae20ce846bb7dc9ba94a767aaef20c0d61ad02655ea92dc4c4e41a8952c651d33174be51" +
			"a10c421110e6d81588ede82103a252d8a750e8768defffed9122810aaeb99f9172af82b604dc4b8e51bcb08235a6f434" +
			"1332e4ca60482a4ba1a03b3e65008fc5da76b70bf1690db4eae29c5f1badd03c5ccf2a55d705ddcd86d449511ceb7ec3" +
			"0bf12b1fa35b913f9f747a8afd1b130e94bff94effd01a91735ca1726acd0b197c4e5b03393697e126826fb6bbde8ecc" +
			"1e08298516e2c9ed03ff3c1b7860f6de76d4cecd94c8119855ef5297ca67e9f3e7ff72b1e99785ca0a7e7720c5b36dc6" +
			"d72cac9574c8cbbc2f801e23e56fd344b07f22154beba0f08ce8891e643ed995c94d9a69c9f1b5f499027a78572aeebd" +
			"74d20cc39881c213ee770b1010e4bea718846977ae119f7a023ab58cca0ad752afe656bb3c17256a9f6e9bf19fdd5a38" +
			"fc82bbe872c5539edb609ef4f79c203ebb140f2e583cb2ad15b4aa5b655016a8449277dbd477ef2c8d6c017db738b18d" +
			"eb4a427d1923ce3ff262735779a418f20a282df920147beabe421ee5319d0568",
	},
	{
		"27182818284590452353602874713526624977572470936999595749669676273141592653589793238462643383279502884197169399375105820974944592", 0xff,
		"1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b5d31e276f8fe4a8d66b317f9ac683f44" +
			"680a86ac35adfc3345befecb4bb188fd5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0" +
			"c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca2a3e7a7d7df7b10355165c8b9a6d0a7d" +
			"e8b062c4500dc4cd120c0f7418dae3d0b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f" +
			"93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec583e9645e07b8d9670655ba5bbcfecc6" +
			"dc3966380ad8fecb17b6ba02469a020a84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1" +
			"505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae9be69a2ffeceb1bec9de244fbe15992b" +
			"11b77c040f12bd8f6a975a44a0f90c29a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac" +
			"6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f645e8b7e9bfdef33943054ff84011493" +
			"c27b3429eaedb4ed5376441a77ed43851ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa" +
			"773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
	},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newPayload(t testing.TB, key []byte, sectorSize int, ivTweak uint64) *Payload {
	t.Helper()
	cipher, err := xts.NewCipher(aes.NewCipher, key)
	if err != nil {
		t.Fatal(err)
	}
	return &Payload{cipher, sectorSize, ivTweak}
}

func TestVectorsOfIEEE1619(t *testing.T) {
	plain := make([]byte, 512)
	for i := range plain {
		plain[i] = byte(i)
	}
	for _, v := range vectors {
		p := newPayload(t, unhex(t, v.key), len(plain), 0)
		b := bytes.Clone(plain)
		p.Encrypt(b, int64(v.number)*ivUnit)
		if got := hex.EncodeToString(b); got != v.ciphertext {
			t.Errorf("key %s, number %#x: got %s, want %s", v.key, v.number, got, v.ciphertext)
		}
		p.Decrypt(b, int64(v.number)*ivUnit)
		if !bytes.Equal(b, plain) {
			t.Errorf("key %s, number %#x: decrypted to %x", v.key, v.number, b)
		}
	}
}

// TestSectorNumbers encrypts each sector with its number in dm-crypt and compares the ciphertext.
func TestSectorNumbers(t *testing.T) {
	random := rand.NewChaCha8([32]byte{7})
	for _, keySize := range []int{32, 64} {
		for _, sectorSize := range []int{512, 1024, 2048, 4096} {
			for _, ivTweak := range []uint64{0, 8, 1<<64 - 4} { // the last one overflows
				t.Run(fmt.Sprint(keySize, sectorSize, ivTweak), func(t *testing.T) {
					key := make([]byte, keySize)
					random.Read(key)
					p := newPayload(t, key, sectorSize, ivTweak)
					plain := make([]byte, 9*4096+sectorSize)
					random.Read(plain)
					offset := int64(1<<41) + int64(3*sectorSize)
					want := make([]byte, len(plain))
					for at := 0; at < len(plain); at += sectorSize {
						n := ivTweak + uint64(offset+int64(at))/512
						p.cipher.Encrypt(want[at:at+sectorSize], plain[at:at+sectorSize], n)
					}
					got := bytes.Clone(plain)
					p.Encrypt(got, offset)
					if !bytes.Equal(got, want) {
						t.Fatal("the ciphertext has other sector numbers")
					}
					p.Decrypt(got, offset)
					if !bytes.Equal(got, plain) {
						t.Fatal("wrong plaintext")
					}
					var wg sync.WaitGroup
					for at := 0; at < len(got); at += sectorSize {
						wg.Go(func() { p.Encrypt(got[at:at+sectorSize], offset+int64(at)) })
					}
					wg.Wait()
					if !bytes.Equal(got, want) {
						t.Fatal("concurrent calls return a different ciphertext")
					}
				})
			}
		}
	}
}

// TestPanicUnlessWholeSectors checks that partial sectors cause a panic before any byte changes.
// Otherwise wrong bytes would be written to a disk.
func TestPanicUnlessWholeSectors(t *testing.T) {
	p := newPayload(t, make([]byte, 32), 4096, 0)
	for _, test := range []struct{ size, offset int64 }{{4096 + 512, 0}, {1, 0}, {4096, 512}, {4096, -4096}} {
		b := make([]byte, 2*4096)
		for _, crypt := range []func([]byte, int64){p.Encrypt, p.Decrypt} {
			func() {
				defer func() {
					if recover() == nil || !bytes.Equal(b, make([]byte, len(b))) {
						t.Errorf("%d bytes at %d are accepted as whole sectors of 4096", test.size, test.offset)
					}
				}()
				crypt(b[:test.size], test.offset)
			}()
		}
	}
}
