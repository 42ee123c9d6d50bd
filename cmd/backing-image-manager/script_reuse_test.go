package main

import (
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// longhornCfg is what Longhorn reads of a backing.cfg; every key has to be there.
type longhornCfg struct {
	Name             *string `json:"name"`
	UUID             *string `json:"uuid"`
	Size             *int64  `json:"size"`
	VirtualSize      *int64  `json:"virtualSize"`
	RealSize         *int64  `json:"realSize"`
	ExpectedChecksum *string `json:"expectedChecksum"`
	CurrentChecksum  *string `json:"currentChecksum"`
	ModificationTime *string `json:"modificationTime"`
}

// reuse goes by Longhorn's rules, see script_test.go.
func reuse(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: reuse DISK NAME-UUID [CHECKSUM]")
	}
	expected := ""
	if len(args) == 3 {
		expected = args[2]
	}
	folder := filepath.Join(ts.MkAbs(args[0]), "backing-images", args[1])
	expect(ts, neg, reusable(folder, args[1], expected))
}

// reusable says why Longhorn would hash the file of an image anew, or delete it and
// begin again. It is written down here a second time, with nothing of the program's.
func reusable(folder, id, expected string) error {
	file := filepath.Join(folder, "backing")
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(folder, "backing.cfg"))
	if err != nil {
		return err
	}
	var c longhornCfg
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	if c.Name == nil || c.UUID == nil || c.Size == nil || c.VirtualSize == nil || c.RealSize == nil ||
		c.ExpectedChecksum == nil || c.CurrentChecksum == nil || c.ModificationTime == nil {
		return fmt.Errorf("a key is missing in %s", data)
	}
	checksum, err := sha512Of(file)
	switch {
	case err != nil:
		return err
	case *c.ModificationTime != info.ModTime().UTC().String():
		return fmt.Errorf("modificationTime is %q, of the file it is %q", *c.ModificationTime, info.ModTime().UTC().String())
	case *c.Size != info.Size(), *c.VirtualSize < *c.Size && *c.VirtualSize%512 != 0, *c.RealSize > *c.Size+1<<20:
		return fmt.Errorf("the file has %d bytes, and backing.cfg says %s", info.Size(), data)
	case *c.CurrentChecksum != checksum:
		return fmt.Errorf("currentChecksum is %q, of the file it is %q", *c.CurrentChecksum, checksum)
	case expected != "" && *c.CurrentChecksum != expected, *c.ExpectedChecksum != "" && *c.ExpectedChecksum != checksum:
		return fmt.Errorf("expectedChecksum is %q, wanted is %q, and the file has %q", *c.ExpectedChecksum, expected, checksum)
	case !strings.HasSuffix(id, "-"+*c.UUID), *c.Name != file:
		return fmt.Errorf("name is %q and uuid %q, for %s", *c.Name, *c.UUID, file)
	}
	return nil
}

func sha512Of(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha512.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}
