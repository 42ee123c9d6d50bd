package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/rogpeppe/go-internal/testscript"
)

// commands are documented in script_test.go.
var commands = map[string]func(*testscript.TestScript, bool, []string){
	"mkimage":  mkimage,
	"sum":      sum,
	"serve":    serve,
	"s3":       serveS3,
	"requests": requests,
	"forget":   forget,
	"address":  address,
	"http": func(ts *testscript.TestScript, neg bool, args []string) {
		expect(ts, neg, sendHTTP(ts, args, ts.Stdout(), ts.Stderr()))
	},
	"eventually": eventually,
	"sparse":     func(ts *testscript.TestScript, neg bool, args []string) { expect(ts, neg, sparse(ts, args)) },
	"same":       func(ts *testscript.TestScript, neg bool, args []string) { expect(ts, neg, same(ts, args)) },
	"replica":    replica,
	"touch-time": touchTime,
	"poke":       poke,
	"tree":       tree,
	"put":        put,
	"fill":       fill,
	"small-disk": smallDisk,
	"bind":       bind,
	"tus-client": findTus,
	"unbind":     unbind,
	"earlier":    earlier,
	"reuse":      reuse,
	"rot":        rot,
	"rounds":     moreRounds,
	"certs":      certs,
	"cluster":    makeCluster,
	"start":      start,
	"halt":       halt,
	"crash":      crash,
	"taken":      taken,
	"hold":       hold,
	"release":    release,
	"gate":       makeGate,
	"open":       openGate,
	"passed":     func(ts *testscript.TestScript, neg bool, args []string) { expect(ts, neg, passed(ts, args)) },
	"larger":     func(ts *testscript.TestScript, neg bool, args []string) { expect(ts, neg, larger(ts, args)) },
	"shows":      func(ts *testscript.TestScript, neg bool, args []string) { expect(ts, neg, shows(ts, args)) },
	"metric":     func(ts *testscript.TestScript, neg bool, args []string) { expect(ts, neg, metric(ts, args)) },
	"sent":       func(ts *testscript.TestScript, neg bool, args []string) { expect(ts, neg, sent(ts, args)) },
}

func expect(ts *testscript.TestScript, neg bool, err error) {
	switch {
	case !neg:
		ts.Check(err)
	case err == nil:
		ts.Fatalf("unexpected success")
	}
}

func parseSize(ts *testscript.TestScript, text string) int64 {
	n, err := humanize.ParseBytes(strings.TrimSuffix(text, "B"))
	ts.Check(err)
	return int64(n)
}

func copyTo(w io.Writer, r io.Reader) error {
	_, err := io.Copy(w, r)
	return err
}

func sum(ts *testscript.TestScript, neg bool, args []string) {
	hashes := map[string]func() hash.Hash{"sha512": sha512.New, "sha256": sha256.New}
	if neg || len(args) != 3 || hashes[args[0]] == nil {
		ts.Fatalf("usage: sum sha512|sha256 FILE VAR")
	}
	f, err := os.Open(ts.MkAbs(args[1]))
	ts.Check(err)
	defer f.Close()
	h := hashes[args[0]]()
	ts.Check(copyTo(h, f))
	ts.Setenv(args[2], hex.EncodeToString(h.Sum(nil)))
}

func address(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: address VAR")
	}
	ts.Setenv(args[0], freeAddress(ts, "127.0.0.1"))
}

// patience is how long a scenario waits for what must happen.
const patience = time.Minute

func eventually(ts *testscript.TestScript, neg bool, args []string) {
	want := true
	if len(args) > 0 && args[0] == "!" {
		want, args = false, args[1:]
	}
	if neg || len(args) == 0 {
		ts.Fatalf("usage: eventually [!] CMD [ARG]...")
	}
	again := time.NewTicker(100 * time.Millisecond) // each look costs the program that is waited for time
	defer again.Stop()
	over := time.After(patience)
	for {
		var out, errOut bytes.Buffer // of the last attempt alone
		err := attempt(ts, args[0], args[1:], &out, &errOut)
		if (err == nil) == want {
			if errOut.Len() > 0 { // else exec has set what it printed
				ts.Check(errors.Join(copyTo(ts.Stdout(), &out), copyTo(ts.Stderr(), &errOut)))
			}
			return
		}
		select {
		case <-again.C:
		case <-over:
			ts.Fatalf("not within %v: %v", patience, err)
		}
	}
}

// attempt runs a command that may fail without ending the script.
func attempt(ts *testscript.TestScript, name string, args []string, out, errOut io.Writer) error {
	switch name {
	case "exec":
		return ts.Exec(args[0], args[1:]...)
	case "exists":
		_, err := os.Lstat(ts.MkAbs(args[0]))
		return err
	case "grep":
		return find(ts, args)
	case "sparse":
		return sparse(ts, args)
	case "same":
		return same(ts, args)
	case "shows":
		return shows(ts, args)
	case "metric":
		return metric(ts, args)
	case "sent":
		return sent(ts, args)
	case "passed":
		return passed(ts, args)
	case "larger":
		return larger(ts, args)
	case "http":
		return sendHTTP(ts, args, out, errOut)
	case "requests":
		return countRequests(originOf(ts, args[0]), args[1], args[2])
	}
	ts.Fatalf("eventually: no command %q", name)
	return nil
}

func find(ts *testscript.TestScript, args []string) error {
	if len(args) != 2 {
		ts.Fatalf("usage: grep PATTERN FILE")
	}
	match, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	data, err := os.ReadFile(ts.MkAbs(args[1]))
	if err == nil && !match.Match(data) {
		err = fmt.Errorf("no match for %q in %s:\n%s", args[0], args[1], data)
	}
	return err
}

func sparse(ts *testscript.TestScript, args []string) error {
	info, err := os.Stat(ts.MkAbs(args[0]))
	if err != nil {
		return err
	}
	if real := info.Sys().(*syscall.Stat_t).Blocks * 512; real >= info.Size() {
		return fmt.Errorf("%s has %d bytes and takes %d", args[0], info.Size(), real)
	}
	return nil
}

func same(ts *testscript.TestScript, args []string) error {
	if len(args) != 2 {
		ts.Fatalf("usage: same FILE FILE")
	}
	var digests [2][sha256.Size]byte
	for i, name := range args {
		f, err := os.Open(ts.MkAbs(name))
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		digests[i] = [sha256.Size]byte(h.Sum(nil))
	}
	if digests[0] != digests[1] {
		return fmt.Errorf("%s and %s differ", args[0], args[1])
	}
	return nil
}

func replica(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: replica DISK VOLUME IMAGEFOLDER|- [dirty|rebuilding|error|torn|empty]...")
	}
	is := func(state string) bool { return slices.Contains(args[3:], state) }
	meta := map[string]any{
		"Size": 1 << 30, "Head": "volume-head-000.img", "Dirty": is("dirty"), "Rebuilding": is("rebuilding"),
		"Error": "", "Parent": "", "SectorSize": 512, "BackingFilePath": "", "Encrypted": false,
	}
	if is("error") {
		meta["Error"] = "no space left on device"
	}
	if args[2] != "-" {
		meta["BackingFilePath"] = "/host/var/lib/longhorn/backing-images/" + args[2] + "/backing"
	}
	data, err := json.Marshal(meta)
	ts.Check(err)
	if is("torn") {
		data = data[:len(data)/2]
	}
	if is("empty") {
		data = nil
	}
	dir := ts.MkAbs(filepath.Join(args[0], "replicas", args[1]+"-0a1b2c3d"))
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, "volume.meta"), data, 0o644))
}

func touchTime(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: touch-time FILE RFC3339")
	}
	to, err := time.Parse(time.RFC3339Nano, args[1])
	ts.Check(err)
	ts.Check(os.Chtimes(ts.MkAbs(args[0]), to, to))
}

func poke(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: poke FILE OFFSET")
	}
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_RDWR, 0)
	ts.Check(err)
	defer f.Close()
	b, at := make([]byte, 1), parseSize(ts, args[1])
	_, err = f.ReadAt(b, at)
	ts.Check(err)
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	ts.Check(err)
}
