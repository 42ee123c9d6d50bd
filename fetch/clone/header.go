package clone

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/seed-26586806/backing-image-manager/disk/luks"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// HeaderSize is how many bytes larger a disk is when it is encrypted, as with Longhorn.
const HeaderSize = luks.MaxOffset

// makeHeader makes the header of a disk of so many bytes when encrypted, in a file in
// memory, and a new key.
func makeHeader(ctx context.Context, s *secret, size int64) (_ *os.File, _ *luks.Payload, err error) {
	f, err := inMemory(size)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	key := make([]byte, s.keyBits/8)
	defer clear(key)
	rand.Read(key)
	pipe, err := pipeOf(key)
	if err != nil {
		return nil, nil, err
	}
	defer pipe.Close()
	out, err := cryptsetup(ctx, s.passphrase, []*os.File{f, pipe}, s.formatArgs()...)
	if err != nil {
		return nil, nil, fmt.Errorf("make a LUKS header: %w", err)
	}
	clear(out)
	h, err := luks.Read(f, size)
	if refused, ok := errors.AsType[*luks.HeaderError](err); ok {
		// By the secret's wishes, or those of a large machine.
		return nil, nil, fail(fetch.BadConfig, "cryptsetup has made a header that could not be opened again: %w", refused)
	}
	if err != nil {
		return nil, nil, err
	}
	if h.Offset != HeaderSize {
		return nil, nil, fmt.Errorf("cryptsetup has made a header of %d bytes, not %d", h.Offset, int64(HeaderSize))
	}
	p, err := h.Open(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cryptsetup has made a header: %w", err)
	}
	return f, p, nil
}

// formatArgs asks for the header that Longhorn asks for. Sectors have the 512 bytes that
// they have there: a disk need not end with a larger one.
func (s *secret) formatArgs() []string {
	args := []string{
		"luksFormat", "--batch-mode", "--type=luks2", "--cipher=" + cipher, "--hash=" + s.hash,
		"--key-size=" + strconv.Itoa(s.keyBits), "--pbkdf=" + s.pbkdf, "--sector-size=512",
		"--offset=" + strconv.Itoa(HeaderSize/512), "--key-file=-", "--volume-key-file=" + file(1),
	}
	if s.iterations > 0 {
		args = append(args, "--pbkdf-force-iterations="+strconv.FormatInt(s.iterations, 10))
	}
	if s.memory > 0 && s.pbkdf != "pbkdf2" {
		args = append(args, "--pbkdf-memory="+strconv.FormatInt(s.memory, 10))
	}
	return append(args, file(0))
}

// readHeader opens the header of an encrypted disk of so many bytes. What is judged is
// what cryptsetup gets to see, whatever becomes of the disk.
func readHeader(ctx context.Context, disk io.ReaderAt, size int64, passphrase []byte) (*luks.Header, *luks.Payload, error) {
	f, err := inMemory(size)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(disk, 0, min(size, HeaderSize))); err != nil {
		return nil, nil, fmt.Errorf("copy LUKS header: %w", err)
	}
	return openHeader(ctx, f, size, passphrase)
}

// openHeader opens the header of a disk of so many bytes, which is in memory.
func openHeader(ctx context.Context, f *os.File, size int64, passphrase []byte) (*luks.Header, *luks.Payload, error) {
	h, err := luks.Read(f, size)
	if err != nil {
		return nil, nil, err
	}
	out, err := cryptsetup(ctx, passphrase, []*os.File{f},
		"luksDump", "--batch-mode", "--type=luks2", "--dump-volume-key", "--key-file=-", file(0))
	if err != nil {
		return nil, nil, fmt.Errorf("open the LUKS header: %w", err)
	}
	defer clear(out)
	key := dumpedKey(out, h.KeySize)
	defer clear(key)
	p, err := h.Open(key)
	if err != nil {
		return nil, nil, fmt.Errorf("open the LUKS header: %w", err)
	}
	return h, p, nil
}

// dumpedKey finds the key in what cryptsetup prints, which ends with "MK dump:" and the
// bytes in hex, 16 a line. What it finds still has to be the key.
func dumpedKey(out []byte, size int) []byte {
	_, dump, _ := bytes.Cut(out, []byte("dump:"))
	key := make([]byte, 0, size)
	for _, pair := range bytes.Fields(dump) {
		var b [1]byte
		if n, err := hex.Decode(b[:], pair[:min(len(pair), 2)]); err != nil || n != 1 || len(pair) != 2 || len(key) == size {
			break
		}
		key = append(key, b[0])
	}
	return key
}
