package disk

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const cfgFile = "backing.cfg"

// mtimeLayout is how Longhorn writes a modification time: what Go's
// time.Time.String makes of UTC, so trailing zeros of the fraction are left out,
// and the point with them.
const mtimeLayout = "2006-01-02 15:04:05.999999999 -0700 MST"

// longhornCfg is backing.cfg, key for key as Longhorn's backing image manager writes
// and reads it: compact JSON without a newline at the end. Unknown keys are
// ignored.
type longhornCfg struct {
	Name             string `json:"name"` // path of the file, not the image's name
	UUID             string `json:"uuid"`
	Size             int64  `json:"size"`        // bytes of the file
	VirtualSize      int64  `json:"virtualSize"` // bytes that a guest sees; 0: not known
	RealSize         int64  `json:"realSize"`    // bytes allocated on the disk
	ExpectedChecksum string `json:"expectedChecksum"`
	CurrentChecksum  string `json:"currentChecksum"`
	ModificationTime string `json:"modificationTime"`
}

// parseCfg reads a backing.cfg. It is an error when it is cut, is not JSON, or
// cannot be of any image.
func parseCfg(data []byte) (longhornCfg, error) {
	var c longhornCfg
	if err := json.Unmarshal(data, &c); err != nil {
		return longhornCfg{}, fmt.Errorf("read %s: %w", cfgFile, err)
	}
	if c.Size <= 0 || c.VirtualSize < 0 || c.RealSize < 0 {
		return longhornCfg{}, fmt.Errorf("read %s: no file has such sizes", cfgFile)
	}
	return c, nil
}

// Marshal returns the file as Longhorn writes it.
func (c longhornCfg) Marshal() ([]byte, error) { return json.Marshal(c) }

// Digest returns the checksum that the file had when the cfg was written, or the
// zero Digest when there is none that can be read.
func (c longhornCfg) Digest() Digest {
	d, err := ParseDigest(c.CurrentChecksum)
	if err != nil || d.Algorithm() != SHA512 {
		return Digest{}
	}
	return d
}

// formatMtime writes t as Longhorn does. Longhorn compares the strings.
func formatMtime(t time.Time) string { return t.UTC().Format(mtimeLayout) }

func (d *Disk) readCfg(id ID) (longhornCfg, error) {
	data, err := readSmall(d.root, id.file(cfgFile))
	if err != nil {
		return longhornCfg{}, err
	}
	return parseCfg(data)
}

// describeToLonghorn describes the ready file of id to Longhorn.
func (d *Disk) describeToLonghorn(id ID, r Record, expected Digest, info os.FileInfo) error {
	c := longhornCfg{
		Name:             filepath.Join(d.path, id.file(imageFile)),
		UUID:             id.UUID,
		Size:             info.Size(),
		VirtualSize:      r.VirtualSize,
		RealSize:         realSize(info),
		CurrentChecksum:  r.SHA512.String(),
		ModificationTime: formatMtime(info.ModTime()),
	}
	if expected.Algorithm() == SHA512 {
		c.ExpectedChecksum = expected.String()
	}
	return d.putCfg(id, c)
}

// doubtCfg has Longhorn read a failed file before it takes it for what backing.cfg says:
// that vouches by the mtime alone, which bits that rot leave as it is.
func (d *Disk) doubtCfg(id ID) error {
	c, err := d.readCfg(id)
	if err != nil || c.ModificationTime == "" {
		return nil // there is none that vouches for anything
	}
	c.ModificationTime = ""
	return d.putCfg(id, c)
}

func (d *Disk) putCfg(id ID, c longhornCfg) error {
	data, err := c.Marshal()
	if err != nil {
		return err
	}
	defer d.forget(id)
	if err := writeDurably(d.root, id.file(cfgFile), data); err != nil {
		return fmt.Errorf("write %s of %s: %w", cfgFile, id, err)
	}
	return nil
}
