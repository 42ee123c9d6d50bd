package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"time"
)

// commitFile has the last commit of the configuration that was accepted, for managers that require signed commits. It is
// beside longhorn-disk.cfg, and belongs to the whole disk.
const commitFile = "backing-image-manager.commit"

// ConfigCommit is a commit of the configuration.
type ConfigCommit struct {
	Name string // by which git knows it
	// Signed identifies what its signature covers, by a SHA-256. Committed is its date.
	Signed    string
	Committed time.Time
}

var commitPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{64}) (-?[0-9]{1,12})\n?$`)

// ConfigCommit returns the commit that SetConfigCommit recorded, zero if there is none. The error is one of the disk, or
// says that the file has another content, so that nothing is known.
func (d *Disk) ConfigCommit() (ConfigCommit, error) {
	data, err := readSmall(d.root, commitFile)
	if errors.Is(err, fs.ErrNotExist) {
		return ConfigCommit{}, nil
	}
	if err != nil {
		return ConfigCommit{}, fmt.Errorf("read %s of %s: %w", commitFile, d.path, err)
	}
	m := commitPattern.FindStringSubmatch(string(data))
	if m == nil {
		return ConfigCommit{}, fmt.Errorf("%s of %s is not the name of a commit", commitFile, d.path)
	}
	seconds, _ := strconv.ParseInt(m[3], 10, 64) // at most 12 digits
	return ConfigCommit{Name: m[1], Signed: m[2], Committed: time.Unix(seconds, 0).UTC()}, nil
}

// SetConfigCommit records a commit, durably. The disk must be locked.
func (d *Disk) SetConfigCommit(c ConfigCommit) error {
	if err := writeDurably(d.root, commitFile, fmt.Appendf(nil, "%s %s %d\n", c.Name, c.Signed, c.Committed.Unix())); err != nil {
		return fmt.Errorf("write %s of %s: %w", commitFile, d.path, err)
	}
	return nil
}
