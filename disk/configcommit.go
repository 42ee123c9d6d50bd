package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// commitFile has the name of the last commit of the configuration that was accepted, for managers that require signed
// commits. It is beside longhorn-disk.cfg, and belongs to the whole disk.
const commitFile = "backing-image-manager.commit"

var commitPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// ConfigCommit returns the commit that SetConfigCommit recorded; "": none. The error is one of the disk, or says that the
// file has another content, so that nothing is known.
func (d *Disk) ConfigCommit() (string, error) {
	data, err := readSmall(d.root, commitFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read %s of %s: %w", commitFile, d.path, err)
	}
	commit := strings.TrimSpace(string(data))
	if !commitPattern.MatchString(commit) {
		return "", fmt.Errorf("%s of %s is not the name of a commit", commitFile, d.path)
	}
	return commit, nil
}

// SetConfigCommit records the name of a commit, durably. The disk must be locked.
func (d *Disk) SetConfigCommit(commit string) error {
	if err := writeDurably(d.root, commitFile, []byte(commit+"\n")); err != nil {
		return fmt.Errorf("write %s of %s: %w", commitFile, d.path, err)
	}
	return nil
}
