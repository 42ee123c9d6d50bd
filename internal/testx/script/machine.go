package script

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

var machineCommands = []command{
	{name: "setup", args: "none", min: 1, max: 1, run: func(s script, args []string) error {
		if args[0] != "none" {
			s.Fatalf("usage: setup none")
		}
		return nil // the setup has already read this line of the script
	}, doc: "Disables the default setup."},
	{name: "need", args: "root REASON | device DEVICE REASON | PROGRAM...", min: 1, max: -1, run: needMachine,
		doc: "Skips the script unless it runs as root (REASON completes \"needs root to …\"), can open the device, or finds the programs. `internal/testx/need` lists the programs and their Debian packages."},
	{name: "small-disk", args: "DIR SIZE", min: 2, max: 2, run: smallDisk,
		doc: "Mounts a file system of the given size in memory until the script ends. Needs root."},
	{name: "medium", args: "DIR SIZE", min: 2, max: 2, run: medium,
		doc: "Mounts an ext4 file system in the file DIR.medium until the script ends. Needs root and mkfs.ext4."},
	{name: "lose", args: "DIR FILE OFFSET SIZE", min: 4, max: 4, run: lose,
		doc: "Overwrites bytes of a file on the `medium` that is mounted at DIR, so that the page cache still has them. The file contains noise."},
	{name: "bind", args: "DIR AT", min: 2, max: 2, run: bind,
		doc: "Also mounts the folder at a second path, until `unbind` or the end of the script. Needs root."},
	{name: "unbind", args: "AT", min: 1, max: 1, run: unbind,
		doc: "Unmounts what `bind` mounted."},
	{name: "address", args: "VAR", min: 1, max: 1, run: address,
		doc: "Sets $VAR to HOST:PORT, a loopback address with a free port."},
	{name: "tus-client", args: "VAR", min: 1, max: 1, run: tusClient,
		doc: "Sets $VAR to testdata/tus/upload.js, which uploads with tus-js-client: `exec node $VAR …`. Skips the script without node and npm."},
}

func needMachine(s script, args []string) error {
	switch {
	case args[0] == "root" && len(args) == 2:
		need.Root(s.t, args[1])
	case args[0] == "device" && len(args) == 3:
		need.Device(s.t, args[1], args[2])
	case args[0] == "root" || args[0] == "device":
		s.Fatalf("usage: need root REASON | device DEVICE REASON | PROGRAM...")
	default:
		need.Programs(s.t, args...)
	}
	return nil
}

func smallDisk(s script, args []string) error {
	dir := s.MkAbs(args[0])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", s.size(args[1]))); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	s.Defer(func() { s.Check(syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return nil
}

func medium(s script, args []string) error {
	dir := s.MkAbs(args[0])
	file := dir + ".medium"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(file, s.size(args[1])); err != nil {
		return err
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", file}, {"mount", "-o", "loop", file, dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
	}
	s.Defer(func() { s.Check(syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return nil
}

// block is the size of a block of a medium.
const block = 4096

func lose(s script, args []string) error {
	content, err := os.ReadFile(s.MkAbs(args[1])) // and all its pages are cached
	if err != nil {
		return err
	}
	syscall.Sync()
	file, err := os.OpenFile(s.MkAbs(args[0])+".medium", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	whole, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	from := s.size(args[2])
	for ; from < s.size(args[2])+s.size(args[3]); from += block {
		at := bytes.Index(whole, content[from:from+block])
		if at < 0 {
			return fmt.Errorf("the medium does not have the bytes at %d", from)
		}
		if _, err := file.WriteAt(make([]byte, block), int64(at)); err != nil {
			return err
		}
	}
	return file.Sync()
}

func bind(s script, args []string) error {
	at := s.MkAbs(args[1])
	if err := syscall.Mount(s.MkAbs(args[0]), at, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	s.Defer(func() { _ = syscall.Unmount(at, syscall.MNT_DETACH) }) // fails after unbind
	return nil
}

func unbind(s script, args []string) error {
	return syscall.Unmount(s.MkAbs(args[0]), syscall.MNT_DETACH)
}

func address(s script, args []string) error {
	a, err := freeport.Address("127.0.0.1")
	if err != nil {
		return err
	}
	s.Setenv(args[0], a)
	return nil
}

func tusClient(s script, args []string) error {
	need.Programs(s.t, "node", "npm", "tus-js-client")
	client, _ := need.Lookup("tus-js-client")
	if err := client.Fetch(context.Background(), s.root); err != nil {
		return err
	}
	s.Setenv(args[0], filepath.Join(s.root, client.NPM, "upload.js"))
	return nil
}
