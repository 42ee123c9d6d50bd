package chaos

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
)

// image is what all generations of an image have in common.
type image struct {
	name     string
	upload   bool   // otherwise a download
	checksum bool   // declared
	format   string // raw, sparse or qcow2
	pack     string // "", gz or xz
	size     int    // of the largest generation, about
	copies   int    // at first; 0: all
	now      *generation
	// generations has all generations so far, by uuid.
	generations map[string]*generation
}

// generation is the truth about one generation of an image.
type generation struct {
	image  *image
	number int
	uuid   string
	size   int64
	digest [sha256.Size]byte // of the content
	sha512 string            // of the content, in hex
	file   string            // has the content
	packed string            // has what the upstream serves; equal to file if it is not packed
	path   string            // at the upstream
}

// id returns the name of the folder of its copies.
func (g *generation) id() string { return g.image.name + "-" + g.uuid }

func (g *generation) String() string { return g.id() }

const (
	kib = 1 << 10
	mib = 1 << 20
)

// newImages returns the images of a seed. The first ones are those that every run needs: one with a
// copy on each disk, one that only people have, one without a declared checksum.
func newImages(seed uint64, count, largest int) []*image {
	dice := rand.New(rand.NewPCG(seed, 1<<32))
	var images []*image
	for i := range count {
		m := &image{
			name: fmt.Sprintf("image-%d", i), checksum: true, format: pick(dice.Uint64(), []string{"raw", "raw", "sparse", "qcow2"}),
			size: 256 * kib << dice.IntN(7), copies: 1 + dice.IntN(3), generations: map[string]*generation{},
		}
		m.size = min(m.size, largest)
		if !m.upload && dice.IntN(4) == 0 {
			m.pack = pick(dice.Uint64(), []string{"gz", "xz"})
			m.size = min(m.size, 2*mib) // packing takes time, in which the suite does nothing else
		}
		switch i {
		case 0:
			m.copies, m.size = 0, min(m.size, 2*mib)
		case 1:
			m.upload, m.pack = true, ""
		case 2:
			m.checksum = false
		case 3:
			m.upload, m.checksum, m.pack = true, false, ""
		}
		images = append(images, m)
	}
	return images
}

// next creates the next generation below dir and makes it the present one. url is the address of the
// upstream. The bytes are a function of the seed, the name and the number.
func (m *image) next(seed uint64, dir, url string) (*generation, error) {
	g := &generation{image: m, number: len(m.generations)}
	content := m.content(seed, g.number)
	g.size, g.digest = int64(len(content)), sha256.Sum256(content)
	long := sha512.Sum512(content)
	g.sha512 = hex.EncodeToString(long[:])
	base := fmt.Sprintf("%s-%d.%s", m.name, g.number, map[string]string{"raw": "raw", "sparse": "raw", "qcow2": "qcow2"}[m.format])
	g.file = filepath.Join(dir, base)
	g.packed, g.path = g.file, "/"+base
	if err := os.WriteFile(g.file, content, 0o644); err != nil {
		return nil, err
	}
	if m.pack != "" {
		g.packed, g.path = g.file+"."+m.pack, g.path+"."+m.pack
		if err := pack(g.packed, m.pack, content); err != nil {
			return nil, err
		}
	}
	g.uuid = m.uuid(g, url)
	m.generations[g.uuid], m.now = g, g
	return g, nil
}

// content returns the bytes of a generation.
func (m *image) content(seed uint64, number int) []byte {
	var key [32]byte
	copy(key[16:], m.name)
	binary.BigEndian.PutUint64(key[:], seed)
	binary.BigEndian.PutUint64(key[8:], uint64(number))
	noise := rand.NewChaCha8(key)
	size := (m.size/2 + int(noise.Uint64()%uint64(m.size/2))) / 512 * 512
	switch m.format {
	case "sparse":
		b := make([]byte, size)
		noise.Read(b[:size/8])
		noise.Read(b[size/2 : size/2+size/8])
		return b
	case "qcow2":
		return qcow2(size, noise)
	}
	b := make([]byte, size)
	noise.Read(b)
	return b
}

// qcow2 returns a qcow2 image of version 3 in clusters of 64 KiB: a header, a refcount table, a
// refcount block, an L1 table, an L2 table, and size bytes of data, rounded up.
func qcow2(size int, data io.Reader) []byte {
	const cluster = 64 << 10
	clusters := (size + cluster - 1) / cluster
	b := make([]byte, (5+clusters)*cluster)
	at := func(offset int, v any) {
		if _, err := binary.Encode(b[offset:], binary.BigEndian, v); err != nil {
			panic(err)
		}
	}
	copy(b, "QFI\xfb")
	at(4, uint32(3))
	at(20, uint32(16)) // cluster bits
	at(24, uint64(256*mib))
	at(36, uint32(1)) // number of L1 entries: one for each 512 MiB
	at(40, uint64(3*cluster))
	at(48, uint64(cluster)) // offset of the refcount table
	at(56, uint32(1))
	at(96, uint32(4)) // 16 bits for each reference count
	at(100, uint32(104))
	const used = 1 << 63 // the cluster has one reference and may be written in place
	at(cluster, uint64(2*cluster))
	at(3*cluster, uint64(used|4*cluster))
	for i := range 5 + clusters {
		at(2*cluster+2*i, uint16(1))
	}
	for i := range clusters {
		at(4*cluster+8*i, uint64(used|uint64(5+i)*cluster))
	}
	if _, err := io.ReadFull(data, b[5*cluster:]); err != nil {
		panic(err)
	}
	return b
}

// pack writes the packed content to a file.
func pack(name, format string, content []byte) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	switch format {
	case "gz":
		z := gzip.NewWriter(f)
		if _, err := z.Write(content); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
	case "xz":
		cmd := exec.Command("xz", "-1", "-c")
		cmd.Stdin, cmd.Stdout = bytes.NewReader(content), f
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("xz: %w", err)
		}
	}
	return f.Close()
}

// uuid implements the published formula of the uuid (go doc ./schema UUID), without code of the
// product.
func (m *image) uuid(g *generation, url string) string {
	fields := []string{"backing-image-uuid-1", m.name}
	switch {
	case m.checksum:
		fields = append(fields, "checksum", "sha512:"+g.sha512)
	case m.upload:
		fields = append(fields, "upload")
	default:
		fields = append(fields, "download", url+g.path, map[string]string{"": "none"}[m.pack]+m.pack, "")
	}
	h := sha256.New()
	for _, f := range fields {
		fmt.Fprintf(h, "%d:%s", len(f), f)
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}
