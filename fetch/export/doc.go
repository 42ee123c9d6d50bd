// Package export creates an image of a volume: of a Longhorn volume, from a replica on a
// disk of this node, or of a file or block device that the operator permits.
//
//	Find   finds the replica folders of the volume on all disks of the node, ignores
//	       those that are unreadable, being rebuilt or failed, and chooses the best one
//	       with a complete chain of layers
//	Fill   opens all layers, and resumes the partial file if it is from the same bytes;
//	       writes the disk itself (raw) or its encoding (qcow2) to the partial file;
//	       fails if a layer changed meanwhile
//
// # Promises
//
//  1. The best replica for a snapshot, which is the same in all replicas, is that of the
//     largest volume, then the first by disk and folder. The best replica for the head is
//     the one written last: by Longhorn's revision counter if all replicas have one, and
//     otherwise by the modification time of the head. A stale replica is not used, even
//     if the newer one is attached.
//  2. Temporary conditions are not final: an attached volume may be detached, and a
//     replica may appear on this node. Only an invalid declaration is final.
//  3. An export resumes only if all layers, and the image below them, have the same size,
//     times and inode as before. A partial file never has bytes of two versions.
//  4. A volume is raw bytes, even if a guest writes the header of a qcow2 image to it:
//     that header never causes another file to be read.
//  5. A block device is opened exclusively, so that the kernel has not mounted or claimed
//     it, and the kernel's count of writes to it must not change. The export of a device
//     never resumes: nothing shows that its bytes are the same.
//
// # Reading order
//
// find.go (choose a replica), path.go (files and devices), fill.go (write the image).
package export
