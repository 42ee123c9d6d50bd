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
	volumeFile   = "volume.meta"
	counterFile  = "revision.counter"
	metaEnding   = ".meta"
	snapshotHead = "volume-snap-"
	imageEnding  = ".img"

	// longestChain is what Longhorn itself refuses to go beyond.
	longestChain = 250
	// largest is beyond what any file system can have a layer of.
	largest = 64 << 40
)

var (
	folderPattern   = regexp.MustCompile(`^(.+)-[0-9a-f]{8}$`)
	headPattern     = regexp.MustCompile(`^volume-head-[0-9]{3,9}\.img$`)
	snapshotPattern = regexp.MustCompile(`^volume-snap-[^/\x00-\x1f]{1,200}\.img$`)
)

// Volume returns the volume of a replica folder, by the name of the folder. ok is false
// for a name that no replica folder has.
func Volume(folder string) (volume string, ok bool) {
	if m := folderPattern.FindStringSubmatch(folder); m != nil {
		return m[1], true
	}
	return "", false
}

// layerMeta is what the .meta beside a layer says that matters to reading it.
type layerMeta struct {
	Parent  string // file name of the next older layer; "": there is none
	Removed bool   // to be merged into another one; until then it counts like any
}

// parseLayerMeta reads the .meta of a layer. It is an error when it is cut, is not
// JSON, or when its Parent is not the plain name of a snapshot's file.
func parseLayerMeta(data []byte) (layerMeta, error) {
	// That of an empty object would be a layer without a Parent: no older data.
	var keys struct {
		Parent  *string
		Removed bool
	}
	if err := json.Unmarshal(data, &keys); err != nil {
		return layerMeta{}, err
	}
	if keys.Parent == nil {
		return layerMeta{}, errors.New("it does not say what its Parent is")
	}
	m := layerMeta{Parent: *keys.Parent, Removed: keys.Removed}
	if m.Parent != "" && !snapshotPattern.MatchString(m.Parent) {
		return layerMeta{}, fmt.Errorf("its Parent %q is not the name of a snapshot", m.Parent)
	}
	return m, nil
}

// snapshotFile is the file of a snapshot.
func snapshotFile(name string) (string, error) {
	file := snapshotHead + name + imageEnding
	if !snapshotPattern.MatchString(file) {
		return "", fmt.Errorf("%q cannot be the name of a snapshot", name)
	}
	return file, nil
}

// Info is what a look at a replica tells without a look at its layers.
type Info struct {
	disk.VolumeMeta
	// Revision grows with each write to the volume; 0: it is not counted.
	Revision int64
	// Written is when the head was last written to, in nanoseconds since 1970.
	Written int64
}

// CheckHealth returns why the replica must not be read; nil: it may be.
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
	return look(r)
}

func look(r *disk.ReplicaFolder) (Info, error) {
	data, err := r.Read(volumeFile)
	if err != nil {
		return Info{}, err
	}
	var i Info
	if i.VolumeMeta, err = disk.ParseVolumeMeta(data); err != nil {
		return Info{}, err
	}
	if i.Size > largest || i.Size%512 != 0 {
		return Info{}, fmt.Errorf("read %s: size %d", volumeFile, i.Size)
	}
	if i.Revision, err = revision(r); err != nil {
		return Info{}, err
	}
	if headPattern.MatchString(i.Head) {
		if head, err := r.Stat(i.Head); err == nil {
			i.Written = head.ModTime
		}
	}
	return i, nil
}

// revision reads the counter: decimal digits, filled up with zero bytes.
func revision(r *disk.ReplicaFolder) (int64, error) {
	data, err := r.Read(counterFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // they are not counted
	}
	if err != nil {
		return 0, err
	}
	digits, _, _ := bytes.Cut(data, []byte{0})
	n, err := strconv.ParseInt(strings.TrimSpace(string(digits)), 10, 64)
	if err != nil || n < 0 {
		return 0, nil // Longhorn begins to count anew
	}
	return n, nil
}

// chain returns the files of the layers, newest first, from the file first on.
func chain(r *disk.ReplicaFolder, first string) (files []string, newest layerMeta, err error) {
	seen := map[string]bool{}
	for file := first; file != ""; {
		if seen[file] {
			return nil, newest, fmt.Errorf("the layers go round in a circle: %s is below itself", file)
		}
		if len(files) == longestChain {
			return nil, newest, fmt.Errorf("more than %d layers lie upon each other", longestChain)
		}
		seen[file] = true
		files = append(files, file)
		data, err := r.Read(file + metaEnding)
		if err != nil {
			return nil, newest, missing(err, file+metaEnding)
		}
		m, err := parseLayerMeta(data)
		if err != nil {
			return nil, newest, fmt.Errorf("read %s%s: %w", file, metaEnding, err)
		}
		if file == first {
			newest = m
		}
		file = m.Parent
	}
	return files, newest, nil
}

// snapshots lists those below the head that can be named, the newest first, for a
// message.
func snapshots(r *disk.ReplicaFolder, head string) string {
	files, _, err := chain(r, head)
	if err != nil || !headPattern.MatchString(head) {
		return ""
	}
	var names []string
	for _, file := range files[1:] {
		data, err := r.Read(file + metaEnding)
		m, bad := parseLayerMeta(data)
		if err != nil || bad != nil || m.Removed {
			continue
		}
		if len(names) == 10 {
			names = append(names, "…")
			break
		}
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(file, snapshotHead), imageEnding))
	}
	if len(names) == 0 {
		return " (there is none)"
	}
	return " (there are " + strings.Join(names, ", ") + ")"
}

// missing says in plain words that a file is not there.
func missing(err error, file string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing: %w", file, fs.ErrNotExist)
	}
	return err
}
