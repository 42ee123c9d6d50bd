package luks

import (
	"crypto/aes"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"errors"
	"hash"
	"maps"
	"slices"
	"strconv"

	"golang.org/x/crypto/xts"
)

// Limits for trying a passphrase on all key slots. They are several times the values that cryptsetup
// chooses on large machines, where it aims at two seconds.
const (
	maxMemory     = 2 << 20  // KiB of Argon2
	maxFilled     = 64 << 20 // KiB of Argon2, times passes
	maxLanes      = 64
	maxIterations = 100 << 20 // of PBKDF2
	maxKeyslots   = 32
	stripes       = 4000 // cryptsetup supports no other number
)

type keyslot struct {
	Type    string
	KeySize int `json:"key_size"`
	AF      struct {
		Type    string
		Stripes int
		Hash    string
	}
	Area struct {
		Type       string
		Offset     string
		Size       string
		Encryption string
		KeySize    int `json:"key_size"`
	}
	KDF struct {
		Type       string
		Time       int64
		Memory     int64
		CPUs       int64
		Iterations int64
		Hash       string
		Salt       []byte
	}
}

// checkKeyslots rejects key slots that exceed the limits or are not supported, and returns the size
// of their key in bytes. payload is the offset of the payload: all key slots must end before it.
func checkKeyslots(slots map[string]keyslot, payload int64) (keySize int, err error) {
	if len(slots) == 0 || len(slots) > maxKeyslots {
		return 0, refuse("it has %d key slots: 1 to %d are allowed", len(slots), maxKeyslots)
	}
	var filled, iterations int64
	for _, s := range slots {
		if keySize == 0 {
			keySize = s.KeySize
		}
		offset, err := strconv.ParseInt(s.Area.Offset, 10, 64)
		size, sizeErr := strconv.ParseInt(s.Area.Size, 10, 64)
		switch {
		case s.Type != "luks2" || s.AF.Type != "luks1" || s.Area.Type != "raw":
			return 0, refuse("it has a type of key slot that is not supported")
		case s.KeySize != keySize || keySize != 32 && keySize != 64 || s.Area.KeySize > 64 || s.Area.KeySize < 0:
			return 0, refuse("its keys must all have 256 bits or all have 512 bits")
		case s.AF.Stripes != stripes:
			return 0, refuse("it has a key slot with %d stripes: only %d is supported", s.AF.Stripes, stripes)
		case err != nil || sizeErr != nil || offset < 0 || size < int64(keySize)*stripes || size > payload || offset > payload-size:
			return 0, refuse("it has a key slot with an invalid offset or size")
		}
		switch s.KDF.Type {
		case "argon2i", "argon2id":
			if s.KDF.Time < 1 || s.KDF.Memory < 1 || s.KDF.Memory > maxMemory || s.KDF.Time > maxFilled || s.KDF.CPUs < 1 || s.KDF.CPUs > maxLanes {
				return 0, refuse("trying a passphrase needs %d passes over %d KiB with %d threads, which exceeds the limit", s.KDF.Time, s.KDF.Memory, s.KDF.CPUs)
			}
			filled += s.KDF.Time * s.KDF.Memory
		case "pbkdf2":
			if s.KDF.Iterations < 1 || s.KDF.Iterations > maxIterations {
				return 0, refuse("trying a passphrase needs %d iterations, which exceeds the limit", s.KDF.Iterations)
			}
			iterations += s.KDF.Iterations
		default:
			return 0, refuse("it uses a key derivation that is not supported")
		}
	}
	if filled > maxFilled || iterations > maxIterations {
		return 0, refuse("trying a passphrase on its %d key slots exceeds the time limit", len(slots))
	}
	return keySize, nil
}

// digest is the stored digest of the volume key, which identifies the right key.
type digest struct {
	Type       string
	Segments   []string
	Hash       string
	Iterations int64
	Salt       []byte
	Digest     []byte
}

// maxDigestIterations limits the cost of checking one key. cryptsetup chooses the iterations for a
// run time of an eighth of a second.
const maxDigestIterations = 10 << 20

// hashes are the supported hash functions of PBKDF2.
var hashes = map[string]func() hash.Hash{
	"sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

// Hashes returns the names of the hashes of headers that Header.Open supports, sorted.
func Hashes() []string { return slices.Sorted(maps.Keys(hashes)) }

func findDigest(digests map[string]digest) (digest, error) {
	var found []digest
	for _, d := range digests {
		if slices.Contains(d.Segments, "0") {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return digest{}, refuse("it has %d digests of the key: one is needed", len(found))
	}
	d := found[0]
	switch {
	case d.Type != "pbkdf2" || hashes[d.Hash] == nil:
		return digest{}, refuse("the digest of the key has a type that is not supported")
	case d.Iterations < 1 || d.Iterations > maxDigestIterations:
		return digest{}, refuse("the digest of the key needs %d iterations, which exceeds the limit", d.Iterations)
	case len(d.Digest) < 16 || len(d.Digest) > 64 || len(d.Salt) == 0 || len(d.Salt) > 512:
		return digest{}, refuse("the digest of the key has an invalid length: %d bytes, with a salt of %d", len(d.Digest), len(d.Salt))
	}
	return d, nil
}

// errWrongKey: the key is not the volume key of the disk.
var errWrongKey = errors.New("this is not the volume key of the LUKS disk")

// Open returns the payload. It returns an error if key is not the volume key of the disk.
func (h *Header) Open(key []byte) (*Payload, error) {
	if len(key) != h.KeySize {
		return nil, errWrongKey
	}
	// The string is a copy of the key. Like the key schedules of AES, it is not wiped.
	sum, err := pbkdf2.Key(hashes[h.digest.Hash], string(key), h.digest.Salt, int(h.digest.Iterations), len(h.digest.Digest))
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(sum, h.digest.Digest) != 1 {
		return nil, errWrongKey
	}
	cipher, err := xts.NewCipher(aes.NewCipher, key)
	if err != nil {
		return nil, err
	}
	return &Payload{cipher, h.SectorSize, h.ivTweak}, nil
}
