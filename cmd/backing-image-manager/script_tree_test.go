package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

func tree(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tree DIR")
	}
	root := ts.MkAbs(args[0])
	ts.Check(filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(ts.Stdout(), strings.TrimPrefix(path, root+"/")+describe(path, info))
		return nil
	}))
}

func describe(path string, info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "/"
	case info.Mode()&fs.ModeSymlink != 0:
		to, _ := os.Readlink(path)
		return " -> " + to
	case filepath.Ext(path) == "" || filepath.Ext(path) == ".part":
		return fmt.Sprint(" ", info.Size())
	}
	return ""
}
