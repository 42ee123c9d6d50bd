package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// leaseProbe uses file leases to determine whether a file is open. Only one probe runs at a time,
// because concurrent probes of a file would detect each other. No probe runs during Disk.Prove.
type leaseProbe struct{ mu sync.Mutex }

func (p *leaseProbe) fileOpen(root *os.Root, name string) (reason string, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := openRegular(root, name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil {
		return "cannot determine whether a process has the file open: " + err.Error(), true
	}
	defer f.Close()
	return openElsewhere(f)
}

// leasedIn is a file with a write lease of this process.
type leasedIn struct {
	f     *os.File
	probe *leaseProbe
}

// lease takes a write lease on a file. It returns nil if the file does not exist, and an error if a
// process has it open, or if that cannot be determined. Until release there are no other probes: they
// would break the lease.
func (p *leaseProbe) lease(root *os.Root, name string) (*leasedIn, error) {
	p.mu.Lock()
	f, err := openRegular(root, name, os.O_RDONLY)
	if err == nil {
		if _, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err == nil {
			return &leasedIn{f, p}, nil
		}
		f.Close()
	}
	p.mu.Unlock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.EAGAIN):
		return nil, errors.New("a process has the file open")
	}
	return nil, fmt.Errorf("cannot determine whether a process has the file open: %w", err)
}

// held reports whether no process has tried to open the file since the lease was taken.
func (l *leasedIn) held() bool {
	kind, err := unix.FcntlInt(l.f.Fd(), unix.F_GETLEASE, 0)
	return err == nil && kind == unix.F_WRLCK
}

// release ends the lease. Processes that opened the file meanwhile continue.
func (l *leasedIn) release() {
	l.f.Close()
	l.probe.mu.Unlock()
}

// openElsewhere reports whether any process has f open by another descriptor: the kernel then rejects
// a write lease. Where leases are not supported, the file counts as open.
func openElsewhere(f *os.File) (reason string, open bool) {
	switch err := probeLease(f, unix.F_WRLCK); {
	case err == nil:
		return "", false
	case errors.Is(err, unix.EAGAIN):
		return "a process has the file open", true
	default:
		return fmt.Sprintf("cannot determine whether a process has the file open: %v", err), true
	}
}

// openForWriting reports whether a process has f open for writing: the kernel then rejects a read
// lease. Where leases are not supported, it returns false. A child process has copies of all
// descriptors of this process between fork and exec, so only a rejection that lasts counts.
func openForWriting(f *os.File) bool {
	const limit, pause = time.Second, 5 * time.Millisecond
	for start := time.Now(); errors.Is(probeLease(f, unix.F_RDLCK), unix.EAGAIN); time.Sleep(pause) {
		if time.Since(start) > limit {
			return true
		}
	}
	return false
}

// probeLease requests a lease on f and releases it.
func probeLease(f *os.File, kind int) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind); err != nil {
		return err
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err
}
