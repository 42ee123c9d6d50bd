package schema

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"path"
	"regexp"
	"slices"
)

// unit is what CUE evaluates at once: the files of a folder with one package
// clause, or one file without.
type unit struct {
	Origin string // what to load: ./folder:package, or a file
	Files  []File
	// Others are what the files may import or embed; nothing where they do not.
	Others []File
}

var packageClause = regexp.MustCompile(`(?m)^[ \t]*package[ \t]+([\pL_$][\pL\pN_$]*)`)

// units groups the .cue files of a snapshot. Those below cue.mod say nothing by
// themselves: they are there to be imported.
func units(files []File) []*unit {
	byOrigin := map[string]*unit{}
	var all []*unit
	for _, f := range files {
		if path.Ext(f.Path) != ".cue" || belowModule(f.Path) {
			continue
		}
		origin := f.Path
		if m := packageClause.FindSubmatch(f.Data); m != nil && string(m[1]) != "_" {
			origin = "./" + path.Dir(f.Path) + ":" + string(m[1])
		}
		u := byOrigin[origin]
		if u == nil {
			u = &unit{Origin: origin}
			byOrigin[origin], all = u, append(all, u)
		}
		u.Files = append(u.Files, f)
	}
	for _, u := range all {
		u.Others = u.reach(files)
	}
	return all
}

func belowModule(name string) bool {
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if path.Base(dir) == "cue.mod" {
			return true
		}
	}
	return false
}

// reach returns the files that u may read besides its own: all of them where it
// imports or embeds anything.
func (u *unit) reach(files []File) []File {
	if !slices.ContainsFunc(u.Files, func(f File) bool {
		return bytes.Contains(f.Data, []byte("import")) || bytes.Contains(f.Data, []byte("@extern"))
	}) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(files), func(f File) bool {
		return f.Err != nil || slices.ContainsFunc(u.Files, func(own File) bool { return own.Path == f.Path })
	})
}

func (u *unit) key() contentKey {
	h := sha256.New()
	for _, files := range [][]File{u.Files, u.Others} {
		h.Write(binary.AppendUvarint(nil, uint64(len(files))))
		for _, f := range files {
			h.Write(appendText(appendText(nil, f.Path), string(f.Data)))
		}
	}
	k := contentKey{origin: u.Origin}
	h.Sum(k.sum[:0])
	return k
}

// unreadable returns what stands against evaluating u at all.
func (u *unit) unreadable() *content {
	c := &content{origin: u.Origin}
	for _, f := range u.Files {
		c.readable(f)
	}
	if len(c.problems) == 0 {
		return nil
	}
	return c
}

// readCUE evaluates the units that are not as they were the last time.
func (l *Loader) readCUE(ctx context.Context, files []File, kept map[contentKey]*content) []*content {
	var contents []*content
	var asked []*unit
	for _, u := range units(files) {
		if c := u.unreadable(); c != nil {
			contents = append(contents, c)
		} else if c := l.contents[u.key()]; c != nil {
			contents, kept[u.key()] = append(contents, c), c
		} else {
			asked = append(asked, u)
		}
	}
	for i, a := range ask(ctx, asked) {
		c := a.content(asked[i])
		contents = append(contents, c)
		if !a.Passing {
			kept[asked[i].key()] = c
		}
	}
	return contents
}
