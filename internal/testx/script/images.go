package script

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

var imageCommands = []command{
	{name: "mkimage", args: "FILE raw|sparse|qcow2 SIZE [SEED]", min: 3, max: 4, run: makeImage,
		doc: "Creates an image: SIZE bytes of noise (raw), 1 MiB of noise at the start and in the middle of a hole of SIZE bytes (sparse), or a qcow2 image of that virtual size with 1 MiB of noise. Equal arguments give equal bytes. Creates the parent folders."},
	{name: "disk", args: "DIR...", min: 1, max: -1, run: initDisks,
		doc: "Creates folders and initialises them as disks."},
	{name: "backdate", args: "DURATION RECORD...", min: 2, max: -1, run: backdate,
		doc: "Moves the times in records that determine clean-up into the past, as if the given time had passed."},
	{name: "bit-rot", args: "IMAGEFOLDER OFFSET", min: 2, max: 2, run: bitRot,
		doc: "Flips a bit of an image such that only a verification of the bytes can detect it: the modification time and the record match the changed file."},
}

const mib = 1 << 20

func makeImage(s script, args []string) error {
	size, seed := s.size(args[2]), int64(1)
	if len(args) > 3 {
		seed = s.size(args[3])
	}
	name := s.MkAbs(args[0])
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	noise := func(n int64) io.Reader {
		return io.LimitReader(rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}), n)
	}
	switch args[1] {
	case "raw":
		_, err = io.Copy(f, noise(size))
	case "sparse":
		if err := f.Truncate(size); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(f, 0), noise(min(mib, size))); err != nil {
			return err
		}
		_, err = io.Copy(io.NewOffsetWriter(f, size/2), noise(min(mib, size-size/2)))
	case "qcow2":
		err = writeQCOW2(f, size, noise(mib))
	default:
		err = fmt.Errorf("unknown kind of image %q", args[1])
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// writeQCOW2 writes a qcow2 image of version 3: a header, a refcount table, a refcount block, an L1
// table, an L2 table, and data, each in clusters of 64 KiB. A guest reads the data at the start of
// its disk.
func writeQCOW2(w io.Writer, size int64, data io.Reader) error {
	const cluster = 64 << 10
	content, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	b := make([]byte, 5*cluster)
	at := func(offset int, v any) {
		if _, err := binary.Encode(b[offset:], binary.BigEndian, v); err != nil {
			panic(err)
		}
	}
	copy(b, "QFI\xfb")
	at(4, uint32(3))
	at(20, uint32(16)) // cluster bits
	at(24, uint64(size))
	at(36, uint32((size+cluster*cluster/8-1)/(cluster*cluster/8))) // number of L1 entries
	at(40, uint64(3*cluster))
	at(48, uint64(cluster)) // offset of the refcount table
	at(56, uint32(1))
	at(96, uint32(4)) // 16 bits for each reference count
	at(100, uint32(104))
	const used = 1 << 63 // the cluster has one reference and may be written in place
	at(cluster, uint64(2*cluster))
	at(3*cluster, uint64(used|4*cluster))
	clusters := len(content) / cluster
	for i := range 5 + clusters {
		at(2*cluster+2*i, uint16(1))
	}
	for i := range clusters {
		at(4*cluster+8*i, uint64(used|uint64(5+i)*cluster))
	}
	_, err = io.Copy(w, io.MultiReader(bytes.NewReader(b), bytes.NewReader(content)))
	return err
}

func initDisks(s script, args []string) error {
	for _, dir := range args {
		if err := initDisk(s.MkAbs(dir)); err != nil {
			return err
		}
	}
	return nil
}

func initDisk(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	_, err := disk.Init(path)
	return err
}

func backdate(s script, args []string) error {
	by, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	for _, name := range args[1:] {
		if err := s.editRecord(name, func(record map[string]any) error {
			for _, key := range []string{"surplusSince", "lastUsed"} {
				text, present := record[key].(string)
				if !present {
					continue
				}
				t, err := time.Parse(time.RFC3339Nano, text)
				if err != nil {
					return err
				}
				record[key] = t.Add(-by)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func bitRot(s script, args []string) error {
	image, record := filepath.Join(args[0], "backing"), filepath.Join(args[0], "backing.record")
	before, err := os.Stat(s.MkAbs(image))
	if err != nil {
		return err
	}
	if err := flipBit(s, image, args[1]); err != nil {
		return err
	}
	if err := os.Chtimes(s.MkAbs(image), before.ModTime(), before.ModTime()); err != nil {
		return err
	}
	after, err := os.Stat(s.MkAbs(image))
	if err != nil {
		return err
	}
	changed := after.Sys().(*syscall.Stat_t).Ctim
	return s.editRecord(record, func(record map[string]any) error {
		record["evidence"].(map[string]any)["changeTime"] = changed.Nano()
		return nil
	})
}

// editRecord changes the record of a copy.
func (s script) editRecord(name string, change func(record map[string]any) error) error {
	var record map[string]any
	d := json.NewDecoder(strings.NewReader(s.ReadFile(name)))
	d.UseNumber() // times of files have too many digits for a float
	if err := d.Decode(&record); err != nil {
		return err
	}
	if err := change(record); err != nil {
		return err
	}
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return writeFile(s.MkAbs(name), string(data))
}
