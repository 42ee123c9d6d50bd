package script

import (
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var longhornCommands = []command{
	{name: "replica", args: "DISK VOLUME IMAGEFOLDER|- [dirty|rebuilding|error|torn|empty]...", min: 3, max: -1, run: makeReplica,
		doc: "Creates the folder of a Longhorn replica on a disk, in the given states. Its volume.meta names the image (-: none); torn writes half of volume.meta, empty nothing."},
	{name: "longhorn-reuses", args: "DISK NAME-UUID [CHECKSUM]", asserts: true, min: 2, max: 3, run: longhornReuses,
		doc: "Asserts that Longhorn's own manager would adopt the image without a transfer and without hashing it."},
}

func makeReplica(s script, args []string) error {
	is := func(state string) bool { return slices.Contains(args[3:], state) }
	meta := map[string]any{
		"Size": 1 << 30, "Head": "volume-head-000.img", "Dirty": is("dirty"), "Rebuilding": is("rebuilding"),
		"Error": "", "Parent": "", "SectorSize": 512, "BackingFilePath": "", "Encrypted": false,
	}
	if is("error") {
		meta["Error"] = "no space left on device"
	}
	if args[2] != "-" {
		meta["BackingFilePath"] = "/host/var/lib/longhorn/backing-images/" + args[2] + "/backing"
	}
	data, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	if is("torn") {
		data = data[:len(data)/2]
	}
	if is("empty") {
		data = nil
	}
	dir := s.MkAbs(filepath.Join(args[0], "replicas", args[1]+"-0a1b2c3d"))
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "volume.meta"), data, 0o644))
}

// longhornCfg contains the keys of a backing.cfg that Longhorn reads. All of them must be present.
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

// longhornReuses checks the rules of Longhorn's manager. It intentionally implements them without
// code of the program.
func longhornReuses(s script, args []string) error {
	expected := ""
	if len(args) == 3 {
		expected = args[2]
	}
	id := args[1]
	folder := filepath.Join(s.MkAbs(args[0]), "backing-images", id)
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
		return fmt.Errorf("backing.cfg lacks a key: %s", data)
	}
	checksum, err := digestFile(file, sha512.New())
	switch {
	case err != nil:
		return err
	case *c.ModificationTime != info.ModTime().UTC().String():
		return fmt.Errorf("modificationTime is %q; the file has %q", *c.ModificationTime, info.ModTime().UTC().String())
	case *c.Size != info.Size(), *c.VirtualSize < *c.Size && *c.VirtualSize%512 != 0, *c.RealSize > *c.Size+1<<20:
		return fmt.Errorf("the file has %d bytes; backing.cfg is %s", info.Size(), data)
	case *c.CurrentChecksum != checksum:
		return fmt.Errorf("currentChecksum is %q; the file has %q", *c.CurrentChecksum, checksum)
	case expected != "" && *c.CurrentChecksum != expected, *c.ExpectedChecksum != "" && *c.ExpectedChecksum != checksum:
		return fmt.Errorf("expectedChecksum is %q; want %q; the file has %q", *c.ExpectedChecksum, expected, checksum)
	case !strings.HasSuffix(id, "-"+*c.UUID), *c.Name != file:
		return fmt.Errorf("name is %q and uuid %q, for %s", *c.Name, *c.UUID, file)
	}
	return nil
}
