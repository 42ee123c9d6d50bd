package script

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

var fileCommands = []command{
	{name: "put", args: "FILE TEXT...", min: 2, max: -1, run: put,
		doc: "Writes the words as one line to a file, by a rename. Creates the parent folders."},
	{name: "expand", args: "FILE TEMPLATE", min: 2, max: 2, run: expand,
		doc: "Writes the template to a file, by a rename, and replaces the variables in it by their values."},
	{name: "digest", args: "sha512|sha256 FILE VAR", min: 3, max: 3, run: digest,
		doc: "Sets $VAR to the digest of the file, in hex."},
	{name: "same", args: "FILE FILE", asserts: true, min: 2, max: 2, run: same,
		doc: "Asserts that two files have the same bytes. Does not print them."},
	{name: "size", args: "FILE <|=|> SIZE", asserts: true, min: 3, max: 3, run: size,
		doc: "Compares the number of bytes of a file."},
	{name: "sparse", args: "FILE", asserts: true, min: 1, max: 1, run: sparse,
		doc: "Asserts that the file uses less disk space than its size."},
	{name: "flip-bit", args: "FILE OFFSET", min: 2, max: 2, run: func(s script, args []string) error { return flipBit(s, args[0], args[1]) },
		doc: "Changes one bit of the byte at the offset."},
	{name: "mtime", args: "FILE RFC3339", min: 2, max: 2, run: mtime,
		doc: "Sets the modification time."},
	{name: "tree", args: "DIR", min: 1, max: 1, run: tree,
		doc: "Prints the sorted paths of all files below DIR, one per line: a folder with a slash at its end, an image or partial file with its size, a symlink with its target."},
}

func put(s script, args []string) error {
	return writeFile(s.MkAbs(args[0]), strings.Join(args[1:], " ")+"\n")
}

func expand(s script, args []string) error {
	return writeFile(s.MkAbs(args[0]), os.Expand(s.ReadFile(args[1]), s.Getenv))
}

// writeFile writes a file under a hidden name and renames it, so that a daemon cannot read an
// incomplete file.
func writeFile(name, text string) error {
	hidden := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".tmp")
	return errors.Join(
		os.MkdirAll(filepath.Dir(name), 0o755),
		os.WriteFile(hidden, []byte(text), 0o644),
		os.Rename(hidden, name),
	)
}

func digest(s script, args []string) error {
	hashes := map[string]func() hash.Hash{"sha512": sha512.New, "sha256": sha256.New}
	if hashes[args[0]] == nil {
		return fmt.Errorf("unknown digest %q", args[0])
	}
	text, err := digestFile(s.MkAbs(args[1]), hashes[args[0]]())
	s.Setenv(args[2], text)
	return err
}

func digestFile(name string, h hash.Hash) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

func same(s script, args []string) error {
	one, err := digestFile(s.MkAbs(args[0]), sha256.New())
	if err != nil {
		return err
	}
	other, err := digestFile(s.MkAbs(args[1]), sha256.New())
	if err == nil && one != other {
		err = fmt.Errorf("%s and %s differ", args[0], args[1])
	}
	return err
}

func size(s script, args []string) error {
	info, err := os.Stat(s.MkAbs(args[0]))
	if err != nil {
		return err
	}
	return compare("the size of "+args[0], float64(info.Size()), args[1], args[2], s.size)
}

func sparse(s script, args []string) error {
	info, err := os.Stat(s.MkAbs(args[0]))
	if err != nil {
		return err
	}
	if taken := info.Sys().(*syscall.Stat_t).Blocks * 512; taken >= info.Size() {
		return fmt.Errorf("%s is not sparse: its size is %d bytes, and it uses %d bytes on disk", args[0], info.Size(), taken)
	}
	return nil
}

func flipBit(s script, file, offset string) error {
	f, err := os.OpenFile(s.MkAbs(file), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b, at := make([]byte, 1), s.size(offset)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	return err
}

func mtime(s script, args []string) error {
	t, err := time.Parse(time.RFC3339Nano, args[1])
	if err != nil {
		return err
	}
	return os.Chtimes(s.MkAbs(args[0]), t, t)
}

func tree(s script, args []string) error {
	root := s.MkAbs(args[0])
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(s.stdout, strings.TrimPrefix(path, root+"/")+describe(path, info))
		return nil
	})
}

// describe returns the text that tree prints after the path.
func describe(path string, info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "/"
	case info.Mode()&fs.ModeSymlink != 0:
		target, _ := os.Readlink(path) // the link existed when it was listed
		return " -> " + target
	case filepath.Ext(path) == "" || filepath.Ext(path) == ".part":
		return fmt.Sprint(" ", info.Size())
	}
	return ""
}
