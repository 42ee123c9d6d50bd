package reconcile

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
)

// form is a way in which operators keep a config directory.
type form struct {
	name   string
	marked bool // a reader can see when a change is complete
	start  func(*sequence)
	ops    []func(*sequence)
}

var forms = []form{
	{"configmap", true, startConfigMap, []func(*sequence){publishConfigMap}},
	{"gitsync", true, startGitSync, []func(*sequence){publishGitSync, publishGitSync, rollBackGitSync}},
	{"link", true, startLink, []func(*sequence){swapWhole, swapWhole, swapToNothing}},
	{"checkout", true, startCheckout, []func(*sequence){switchBranch, switchBranch, pull, reset, stash, pushInto, slowCheckout, slowCheckout}},
	{"plain", false, startPlain, []func(*sequence){copyFiles, saveFile, writeInPieces, removeFile, moveFolder}},
}

// write writes the files of a content into a folder.
func (s *sequence) write(c content, dir string) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		files.Put(s.t, c[name], dir, name)
	}
}

func startConfigMap(s *sequence) {
	s.conf = filepath.Join(s.root, "conf")
	must(s.t, os.Mkdir(s.conf, 0o755))
	publishConfigMap(s)
}

// publishConfigMap does the steps of kubelet's AtomicWriter.
func publishConfigMap(s *sequence) {
	before := s.now
	s.now = s.fresh()
	old, _ := os.Readlink(filepath.Join(s.conf, "..data")) // "" at the start
	folder, err := os.MkdirTemp(s.conf, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	must(s.t, err)
	must(s.t, os.Chmod(folder, 0o755))
	s.write(s.now, folder)
	must(s.t, os.Symlink(filepath.Base(folder), filepath.Join(s.conf, "..data_tmp")))
	files.Rename(s.t, filepath.Join(s.conf, "..data_tmp"), filepath.Join(s.conf, "..data"))
	now, was := topNames(s.now), topNames(before)
	for _, name := range now {
		if !slices.Contains(was, name) {
			must(s.t, os.Symlink(filepath.Join("..data", name), filepath.Join(s.conf, name)))
		}
	}
	for _, name := range was {
		if !slices.Contains(now, name) {
			must(s.t, os.Remove(filepath.Join(s.conf, name)))
		}
	}
	if old != "" {
		files.Remove(s.t, s.conf, old)
	}
}

// topNames returns the names in the top folder of a content, which kubelet links.
func topNames(c content) []string {
	var names []string
	for name := range c {
		top, _, _ := strings.Cut(name, "/")
		names = append(names, top)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func startLink(s *sequence) {
	s.conf = filepath.Join(s.root, "conf")
	swapWhole(s)
}

func swapWhole(s *sequence) {
	old, _ := os.Readlink(s.conf)
	s.now = s.fresh()
	to := fmt.Sprintf("v%d", s.count)
	s.write(s.now, filepath.Join(s.root, to))
	files.SwapLink(s.t, to, s.conf)
	if old != "" && s.one(2) {
		files.Remove(s.t, s.root, old)
	}
}

// swapToNothing makes the link dangle for some rounds.
func swapToNothing(s *sequence) {
	files.SwapLink(s.t, "nowhere", s.conf)
	s.l.rounds(s.IntN(5))
	swapWhole(s)
}

func startPlain(s *sequence) {
	s.conf = filepath.Join(s.root, "conf")
	s.now = content{}
	copyFiles(s)
}

// step does one change to plain files, after which the content is c.
func (s *sequence) step(c content, do func()) {
	began := time.Now()
	do()
	ended := time.Now()
	s.now = c
	s.states = append(s.states, dirState{s.digest(c), began, ended})
}

// with returns the current content with another text of a file, and without the file if text is "".
func (s *sequence) with(name, text string) content {
	c := maps.Clone(s.now)
	if c[name] = text; text == "" {
		delete(c, name)
	}
	return c
}

// copyFiles writes files one by one, sometimes with a pause between them.
func copyFiles(s *sequence) {
	c := s.fresh()
	for _, name := range slices.Sorted(maps.Keys(c)) {
		s.step(s.with(name, c[name]), func() { s.save(name, c[name]) })
		if s.l != nil && s.one(3) {
			s.l.rounds(s.IntN(5))
		}
	}
}

// save writes a file with a rename, as most editors do.
func (s *sequence) save(name, text string) {
	at := filepath.Join(s.conf, name)
	hidden := filepath.Join(filepath.Dir(at), ".saved")
	files.Put(s.t, text, hidden)
	files.Rename(s.t, hidden, at)
}

func (s *sequence) someFile() string {
	return pick(s.Rand, slices.Sorted(maps.Keys(s.now))...)
}

func saveFile(s *sequence) {
	s.count++
	text := fmt.Sprintf("images: {saved-%d: {source: {upload: {}}}}\n", s.count)
	s.step(s.with("saved.yaml", text), func() { s.save("saved.yaml", text) })
}

// writeInPieces writes a file in place. It is invalid before the last write.
func writeInPieces(s *sequence) {
	s.count++
	first, rest := "images: {", fmt.Sprintf("pieces-%d: {source: {upload: {}}}}\n", s.count)
	var f *os.File
	s.step(s.with("pieces.yaml", " "), func() {
		var err error
		f, err = os.OpenFile(filepath.Join(s.conf, "pieces.yaml"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		must(s.t, err)
	})
	defer f.Close()
	write := func(text, whole string) {
		s.step(s.with("pieces.yaml", whole), func() {
			_, err := f.WriteString(text)
			must(s.t, err)
		})
	}
	write(first, first)
	s.l.rounds(s.IntN(3))
	write(rest, first+rest)
}

func removeFile(s *sequence) {
	if name := s.someFile(); name != "base.yaml" {
		s.step(s.with(name, ""), func() { files.Remove(s.t, s.conf, name) })
	}
}

// moveFolder moves a folder with a file into the directory.
func moveFolder(s *sequence) {
	s.count++
	text := fmt.Sprintf("images: {moved-%d: {source: {upload: {}}}}\n", s.count)
	files.Put(s.t, text, s.root, "moved/x.yaml")
	folder := fmt.Sprintf("moved%d", s.count)
	s.step(s.with(folder+"/x.yaml", text), func() { files.Rename(s.t, filepath.Join(s.root, "moved"), filepath.Join(s.conf, folder)) })
}
