package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// earlier changes the times in a record, see script_test.go.
func earlier(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: earlier DURATION RECORD...")
	}
	by, err := time.ParseDuration(args[0])
	ts.Check(err)
	for _, name := range args[1:] {
		edit(ts, name, func(record map[string]any) {
			for _, key := range []string{"unwantedSince", "lastUsed"} {
				if text, noted := record[key].(string); noted {
					was, err := time.Parse(time.RFC3339Nano, text)
					ts.Check(err)
					record[key] = was.Add(-by)
				}
			}
		})
	}
}

var roundsPattern = regexp.MustCompile(`(?m)^backing_image_manager_rounds_total (\S+)$`)

// moreRounds waits for a daemon, see script_test.go.
func moreRounds(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: rounds URL N")
	}
	more, err := strconv.Atoi(args[1])
	ts.Check(err)
	first := roundsOf(ts, args[0])
	waitFor(ts, fmt.Sprintf("%s does not make %d rounds", args[0], more), func() bool {
		return roundsOf(ts, args[0]) >= first+float64(more)
	})
}

// waitFor asks for something that must come about until it has.
func waitFor(ts *testscript.TestScript, otherwise string, is func() bool) {
	again := time.NewTicker(100 * time.Millisecond) // each look costs the program that is waited for time
	defer again.Stop()
	over := time.After(patience)
	for !is() {
		select {
		case <-again.C:
		case <-over:
			ts.Fatalf("%s within %v", otherwise, patience)
		}
	}
}

func roundsOf(ts *testscript.TestScript, url string) float64 {
	var body bytes.Buffer
	ts.Check(sendHTTP(ts, []string{"GET", url + "/metrics"}, &body, io.Discard))
	found := roundsPattern.FindSubmatch(body.Bytes())
	if found == nil {
		ts.Fatalf("%s does not tell its rounds", url)
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	ts.Check(err)
	return n
}

// rot changes an image behind the back of its record, see script_test.go.
func rot(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: rot IMAGEFOLDER OFFSET")
	}
	image, recordFile := filepath.Join(args[0], "backing"), filepath.Join(args[0], "backing.record")
	was, err := os.Stat(ts.MkAbs(image))
	ts.Check(err)
	poke(ts, false, []string{image, args[1]})
	ts.Check(os.Chtimes(ts.MkAbs(image), was.ModTime(), was.ModTime()))
	is, err := os.Stat(ts.MkAbs(image))
	ts.Check(err)
	changed := is.Sys().(*syscall.Stat_t).Ctim
	edit(ts, recordFile, func(record map[string]any) {
		record["evidence"].(map[string]any)["ctime"] = changed.Nano()
	})
}

// edit changes a record.
func edit(ts *testscript.TestScript, name string, change func(record map[string]any)) {
	var record map[string]any
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(name)))
	d.UseNumber() // times of files are too long for a float
	ts.Check(d.Decode(&record))
	change(record)
	data, err := json.Marshal(record)
	ts.Check(err)
	writeAtOnce(ts, name, string(data))
}

func bind(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: bind DIR AT")
	}
	at := ts.MkAbs(args[1])
	ts.Check(syscall.Mount(ts.MkAbs(args[0]), at, "", syscall.MS_BIND, ""))
	ts.Defer(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) }) // fails when the script has done it
}

func unbind(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: unbind AT")
	}
	ts.Check(syscall.Unmount(ts.MkAbs(args[0]), syscall.MNT_DETACH))
}
