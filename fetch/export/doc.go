// Package export creates an image from a volume: from a replica of a Longhorn volume on a disk of
// this node, or from a file or block device that the operator permits.
//
//	Find   finds the replica folders of the volume on all disks of the node, ignores
//	       replicas that are unreadable, being rebuilt or failed, and selects the best one
//	       with a complete chain of layers
//	Fill   opens all layers, and resumes the partial file if it is from the same bytes;
//	       writes the disk itself (raw) or its encoding (qcow2) to the partial file;
//	       fails if a layer changed since it was opened
//
// # Promises
//
//  1. A snapshot is equal in all replicas. The replica with the largest volume is used and, if
//     several are equal, the first one by disk and folder. For the head, the replica that was
//     written last is used: by Longhorn's revision counter if all replicas have one, and
//     otherwise by the modification time of the head. An older replica is not used, even if
//     the newest one is attached.
//  2. Temporary conditions are not final: an attached volume may be detached, and a replica
//     may be created on this node. Only an invalid declaration is final.
//  3. An export resumes only if all layers, and the backing image, have the same size, times
//     and inode as before. A partial file never contains bytes of two versions.
//  4. A volume is raw bytes. Even if a guest writes a qcow2 header to it, no other file is
//     read because of this header.
//  5. A block device is opened exclusively, which fails if the kernel has mounted or claimed
//     it. Its write counter in the kernel must not change during the export. The export of a
//     device never resumes, because a change between two attempts cannot be detected.
//
// # Reading order
//
// find.go (choose a replica), path.go (files and devices), fill.go (write the image).
package export
