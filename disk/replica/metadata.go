package replica

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const (
	volumeFile     = "volume.meta"
	counterFile    = "revision.counter"
	metaSuffix     = ".meta"
	snapshotPrefix = "volume-snap-"
	imageSuffix    = ".img"

	// maxLayers is Longhorn's own limit.
	maxLayers = 250
	// maxOffset is larger than any file of a supported file system.
	maxOffset = 64 << 40
)

var (
	folderPattern   = regexp.MustCompile(`^(.+)-[0-9a-f]{8}$`)
	headPattern     = regexp.MustCompile(`^volume-head-[0-9]{3,9}\.img$`)
	snapshotPattern = regexp.MustCompile(`^volume-snap-[^/\x00-\x1f]{1,200}\.img$`)
)

// Volume returns the volume of a replica folder, parsed from the name of the folder. ok is false if
// this is not the name of a replica folder.
func Volume(folder string) (volume string, ok bool) {
	if m := folderPattern.FindStringSubmatch(folder); m != nil {
		return m[1], true
	}
	return "", false
}

// layerMeta contains the keys of a layer's .meta that are needed to read the layer.
type layerMeta struct {
	Parent  string // file name of the next older layer; "": none
	Removed bool   // it will be merged into another layer; until then it is used like any other
}

// parseLayerMeta parses the .meta of a layer. It returns an error if the file is truncated, is not
// JSON, or has a Parent that is not the file name of a snapshot.
func parseLayerMeta(data []byte) (layerMeta, error) {
	// Pointers, because a missing Parent must not be confused with the empty Parent of the oldest
	// layer.
	var keys struct {
		Parent  *string
		Removed bool
	}
	if err := json.Unmarshal(data, &keys); err != nil {
		return layerMeta{}, err
	}
	if keys.Parent == nil {
		return layerMeta{}, errors.New("it has no Parent")
	}
	m := layerMeta{Parent: *keys.Parent, Removed: keys.Removed}
	if m.Parent != "" && !snapshotPattern.MatchString(m.Parent) {
		return layerMeta{}, fmt.Errorf("its Parent %q is not the name of a snapshot", m.Parent)
	}
	return m, nil
}

// snapshotFile returns the file name of a snapshot.
func snapshotFile(name string) (string, error) {
	file := snapshotPrefix + name + imageSuffix
	if !snapshotPattern.MatchString(file) {
		return "", fmt.Errorf("%q is not a valid name of a snapshot", name)
	}
	return file, nil
}

// Info is the metadata of a replica.
type Info struct {
	disk.VolumeMeta
	// Revision is incremented at each write to the volume; 0: writes are not counted.
	Revision int64
	// HeadModTime is the mtime of the head, in nanoseconds since 1970; 0: not known.
	HeadModTime int64
}

// CheckHealth returns an error if the replica must not be read.
func (i Info) CheckHealth() error {
	switch {
	case i.Rebuilding:
		return errors.New("is being rebuilt from another replica, or its rebuilding was interrupted")
	case i.Error != "":
		return fmt.Errorf("was marked as failed by Longhorn: %q", i.Error)
	}
	return nil
}

// Stat reads the metadata of a replica folder.
func Stat(d *disk.Disk, folder string) (Info, error) {
	r, err := d.OpenReplica(folder)
	if err != nil {
		return Info{}, err
	}
	defer r.Close()
	return readInfo(r)
}

func readInfo(r *disk.ReplicaFolder) (Info, error) {
	data, err := r.Read(volumeFile)
	if err != nil {
		return Info{}, err
	}
	var i Info
	if i.VolumeMeta, err = disk.ParseVolumeMeta(data); err != nil {
		return Info{}, err
	}
	if i.Size > maxOffset || i.Size%512 != 0 {
		return Info{}, fmt.Errorf("read %s: invalid size %d", volumeFile, i.Size)
	}
	if i.Revision, err = revision(r); err != nil {
		return Info{}, err
	}
	if headPattern.MatchString(i.Head) {
		if head, err := r.Stat(i.Head); err == nil {
			i.HeadModTime = head.ModTime
		}
	}
	return i, nil
}

// revision reads the revision counter: decimal digits, padded with zero bytes.
func revision(r *disk.ReplicaFolder) (int64, error) {
	data, err := r.Read(counterFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // writes are not counted
	}
	if err != nil {
		return 0, err
	}
	digits, _, _ := bytes.Cut(data, []byte{0})
	n, err := strconv.ParseInt(strings.TrimSpace(string(digits)), 10, 64)
	if err != nil || n < 0 {
		return 0, nil // Longhorn then starts again from 0
	}
	return n, nil
}

// chain returns the files of the layers, beginning with first, newest first.
func chain(r *disk.ReplicaFolder, first string) (files []string, newest layerMeta, err error) {
	seen := map[string]bool{}
	for file := first; file != ""; {
		if seen[file] {
			return nil, newest, fmt.Errorf("the layers are a cycle: %s is its own ancestor", file)
		}
		if len(files) == maxLayers {
			return nil, newest, fmt.Errorf("it has more than %d layers", maxLayers)
		}
		seen[file] = true
		files = append(files, file)
		data, err := r.Read(file + metaSuffix)
		if err != nil {
			return nil, newest, wrapMissing(err, file+metaSuffix)
		}
		m, err := parseLayerMeta(data)
		if err != nil {
			return nil, newest, fmt.Errorf("read %s%s: %w", file, metaSuffix, err)
		}
		if file == first {
			newest = m
		}
		file = m.Parent
	}
	return files, newest, nil
}

// snapshots returns the names of the snapshots before the head, newest first, for a message. It omits
// removed snapshots, because they cannot be used.
func snapshots(r *disk.ReplicaFolder, head string) string {
	files, _, err := chain(r, head)
	if err != nil || !headPattern.MatchString(head) {
		return ""
	}
	var names []string
	for _, file := range files[1:] {
		data, err := r.Read(file + metaSuffix)
		m, bad := parseLayerMeta(data)
		if err != nil || bad != nil || m.Removed {
			continue
		}
		if len(names) == 10 {
			names = append(names, "…")
			break
		}
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(file, snapshotPrefix), imageSuffix))
	}
	if len(names) == 0 {
		return " (it has none)"
	}
	return " (it has " + strings.Join(names, ", ") + ")"
}

// wrapMissing adds the file name to err if err is fs.ErrNotExist.
func wrapMissing(err error, file string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing: %w", file, fs.ErrNotExist)
	}
	return err
}
